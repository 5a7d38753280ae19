// Virtual memory areas, and the numbers of the memory spaces that hold their pages: what the manifest says of them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckpt::store {

enum class MappingKind {
  kAnonymous,        ///< private, no file: heap, stack, malloc arenas
  kPrivateFile,      ///< MAP_PRIVATE of a file: the image has only the pages that differ from the file
  kSharedFile,       ///< MAP_SHARED of a regular file: the file holds the bytes
  kSharedMemory,     ///< MAP_SHARED of a SharedMemory object: the image has every page of the object with content
  kDroppable,        ///< MAP_DROPPABLE: the kernel may empty it at any time, and so does an image
  kIoUring,          ///< memory of an io_uring, whose IoUring::views name it; `file_offset`: which part
  kHugePages,        ///< private memory of hugetlbfs without a file; `file_offset`: bytes of a page
  kAio,              ///< ring of an AIO context, one of TreeImage::aio_contexts
  kVdso,             ///< [vdso], [vvar], [vvar_vclock]: the new kernel's own, moved to the old place
};

/// VmFlags of smaps as they are, in the kernel's order: "gd" grows down, "dc", "wf", "dd", "hg", "nh", "lo", "nr",
/// "mg", ... Two letters each, in one text that needs no memory of its own for seven of them: a process may have
/// 100,000 mappings.
class VmFlags {
 public:
  static constexpr size_t kLetters = 2;

  VmFlags() = default;
  /// Names of two letters.
  VmFlags(std::initializer_list<const char*> names) {
    for (const char* name : names) add(name);
  }

  /// False, and nothing is added: it does not have two letters.
  bool add(std::string_view name) {
    if (name.size() != kLetters) return false;
    letters_ += name;
    return true;
  }
  size_t size() const { return letters_.size() / kLetters; }
  std::string_view operator[](size_t i) const { return std::string_view(letters_).substr(kLetters * i, kLetters); }
  bool has(std::string_view name) const {
    for (size_t i = 0; i < size(); ++i) {
      if ((*this)[i] == name) return true;
    }
    return false;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (size_t i = 0; i < size(); ++i) out.emplace_back((*this)[i]);
    return out;
  }
  bool operator==(const VmFlags&) const = default;

 private:
  std::string letters_;
};

/// One VMA. Two neighbours that the kernel would merge may appear as one or as two.
struct MemoryMap {
  uint64_t start = 0, end = 0;
  int prot = 0;              ///< PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4
  MappingKind kind = MappingKind::kAnonymous;
  std::string name;          ///< as /proc/PID/maps shows it: path, [heap], [stack], [anon:..]
  int file = -1;             ///< index into TreeImage::files, -1: none
  int shared_memory = -1;    ///< kSharedMemory, and kPrivateFile of a memfd: index into TreeImage::shared_memory
  uint64_t file_offset = 0;  ///< in the file or the shared memory
  VmFlags flags;
  std::vector<std::pair<uint64_t, uint64_t>> guards;  ///< [start, end) made by MADV_GUARD_INSTALL
  bool operator==(const MemoryMap&) const = default;
};

inline bool is_private(const MemoryMap& map) {
  return map.kind == MappingKind::kAnonymous || map.kind == MappingKind::kPrivateFile;
}

/// PR_SET_MM_MAP's bounds.
struct MemoryBounds {
  uint64_t start_code = 0, end_code = 0, start_data = 0, end_data = 0, start_brk = 0, brk = 0, start_stack = 0;
  uint64_t arg_start = 0, arg_end = 0, env_start = 0, env_end = 0;
  bool operator==(const MemoryBounds&) const = default;
};

/// Pages are kept by address in a memory space: the address space of a process, a shared memory, the content of a
/// deleted file. The number of the space is in the upper 16 bits of a block's address, which no address of x86-64 uses.
constexpr unsigned kSpaceShift = 48;

constexpr int kMaxSpaces = 1 << 16;

constexpr uint64_t space_base(int space) { return static_cast<uint64_t>(space) << kSpaceShift; }

inline constexpr std::array<const char*, 9> kMappingNames = {
    "anonymous", "private-file", "shared-file", "shared-memory", "droppable", "io_uring", "huge-pages", "aio", "vdso"};

inline constexpr std::array<const char*, 8> kProtNames = {"---", "r--", "-w-", "rw-", "--x", "r-x", "-wx", "rwx"};

template <class A>
void describe(A& a, typename A::template Of<MemoryMap> m) {
  a.hex("start", m.start);
  a.hex("end", m.end);
  a.choice("prot", m.prot, kProtNames);
  a.choice("kind", m.kind, kMappingNames);
  a.text("name", m.name);
  a.number("file", m.file, -1);
  a.number("shared_memory", m.shared_memory, -1);
  a.hex("file_offset", m.file_offset);
  a.texts("flags", m.flags);
  a.list("guards", m.guards, [](auto& sub, auto& range) {
    sub.hex("start", range.first);
    sub.hex("end", range.second);
  });
}

template <class A>
void describe(A& a, typename A::template Of<MemoryBounds> b) {
  a.hex("start_code", b.start_code);
  a.hex("end_code", b.end_code);
  a.hex("start_data", b.start_data);
  a.hex("end_data", b.end_data);
  a.hex("start_brk", b.start_brk);
  a.hex("brk", b.brk);
  a.hex("start_stack", b.start_stack);
  a.hex("arg_start", b.arg_start);
  a.hex("arg_end", b.arg_end);
  a.hex("env_start", b.env_start);
  a.hex("env_end", b.env_end);
}

}  // namespace ckpt::store
