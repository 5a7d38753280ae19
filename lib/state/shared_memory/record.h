// Memory that processes share and no file name leads to: what the manifest says of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/state/files/record.h"
#include "lib/state/mappings/record.h"

namespace ckpt::store {

/// Memory that processes share and no file name leads to. Its pages are in the image's memory space `space`, by offset.
struct SharedMemory {
  enum class Kind {
    kAnonymous,  ///< mmap(MAP_SHARED | MAP_ANONYMOUS), /dev/zero mapped shared
    kMemfd,      ///< memfd_create
    kSystemV,    ///< shmget: `id` of one of TreeImage::ipc.segments, and its `key`; `inode` is the id, too
  };
  Kind kind = Kind::kAnonymous;
  uint64_t inode = 0;      ///< what names it while it lives
  std::string name;        ///< kMemfd: as given to memfd_create
  uint64_t size = 0;       ///< bytes
  uint32_t seals = 0;      ///< kMemfd: F_SEAL_*
  uint32_t mode = 0, uid = 0, gid = 0;
  int key = 0, id = -1;    ///< kSystemV
  int space = -1;
  uint64_t huge_page = 0;  ///< bytes of a page of hugetlbfs, 0: ordinary memory
  uint64_t write_hint = 0;  ///< kMemfd: F_SET_RW_HINT
  std::vector<ExtendedAttribute> attributes;  ///< kMemfd
  bool operator==(const SharedMemory&) const = default;
};

inline constexpr std::array<const char*, 3> kSharedMemoryNames = {"anonymous", "memfd", "system-v"};

template <class A>
void describe(A& a, typename A::template Of<SharedMemory> m) {
  a.choice("kind", m.kind, kSharedMemoryNames);
  a.number("inode", m.inode);
  a.text("name", m.name);
  a.number("size", m.size);
  a.number("seals", m.seals);
  a.number("mode", m.mode);
  a.number("uid", m.uid);
  a.number("gid", m.gid);
  a.number("key", m.key);
  a.number("id", m.id);
  a.number("space", m.space, -1, kMaxSpaces - 1);
  a.optional().number("huge_page", m.huge_page);
  a.optional().number("write_hint", m.write_hint, 0, 5);
  a.optional().list("attributes", m.attributes);
}

}  // namespace ckpt::store
