// Files that processes map, execute or have open: what the manifest says of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/state/mappings/record.h"

namespace ckpt::store {

inline constexpr size_t kMostAttributeBytes = 64 << 10;  ///< the kernel's own limit

struct ExtendedAttribute {
  std::string name;
  std::vector<uint8_t> value;
  bool operator==(const ExtendedAttribute&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<ExtendedAttribute> e) {
  a.text("name", e.name);
  a.octets("value", e.value, 0, kMostAttributeBytes);
}

/// A file that the process maps, executes, or has open, with what tells whether it is still the same.
struct FileIdentity {
  std::string path;
  uint64_t device = 0, inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  uint32_t mode = 0;
  std::string build_id;      ///< ELF build id in hex when it has one (mapped executables)
  /// Unlinked while in use (`path` is where it was): restore makes it again and unlinks it. A regular file's bytes are
  /// in memory space `space`.
  bool deleted = false;
  int space = -1;
  uint32_t uid = 0, gid = 0;
  std::string other_name;    ///< deleted under `path` only: a name that is left, which has the bytes
  int mounts = -1;           ///< index into Namespaces::further: where `path` leads to it; -1: for the first process
  uint64_t write_hint = 0;   ///< deleted: F_SET_RW_HINT
  std::vector<ExtendedAttribute> attributes;  ///< deleted
  bool operator==(const FileIdentity&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<FileIdentity> f) {
  a.text("path", f.path);
  a.number("device", f.device);
  a.number("inode", f.inode);
  a.number("size", f.size);
  a.number("mtime_ns", f.mtime_ns);
  a.number("mode", f.mode);
  a.text("build_id", f.build_id);
  a.flag("deleted", f.deleted);
  a.number("space", f.space, -1, kMaxSpaces - 1);
  a.number("uid", f.uid);
  a.number("gid", f.gid);
  a.text("other_name", f.other_name);
  a.optional().number("mounts", f.mounts, -1);
  a.optional().number("write_hint", f.write_hint, 0, 5);
  a.optional().list("attributes", f.attributes);
}

}  // namespace ckpt::store
