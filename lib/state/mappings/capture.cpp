#include "lib/state/aio/capture.h"
#include "lib/state/io_uring/capture.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstring>
#include <map>

#include "lib/base/digest.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/proc/remote_memory.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/walk.h"

namespace ckpt::capture {

namespace {

using proc::Vma;

bool is_kernel_mapping(const Vma& vma) { return vma.name == "[vdso]" || vma.name.rfind("[vvar", 0) == 0; }

constexpr const char* kUprobes = "instrumented by uprobes, which is not supported";

constexpr unsigned code_of(std::string_view flag) {
  return static_cast<unsigned char>(flag[0]) << 8 | static_cast<unsigned char>(flag[1]);
}

/// Whether there is any but those that most mappings have: looked through once, for tens of thousands of mappings.
bool has_notable_flag(std::string_view flags) {
  for (; flags.size() >= 2; flags.remove_prefix(2)) {
    switch (code_of(flags)) {
      case code_of("rd"): case code_of("wr"): case code_of("ex"): case code_of("ac"): break;
      case code_of("mr"): case code_of("mw"): case code_of("me"): break;
      default: return true;
    }
  }
  return false;
}

/// Why a mapping cannot be carried, by its VmFlags; empty: it can.
std::string refused_flag(const Vma& vma) {
  if (is_kernel_mapping(vma)) return "";
  if (!has_notable_flag(vma.flags) && vma.protection_key == 0) return vma.name == "[uprobes]" ? kUprobes : "";
  if (vma.has_flag("io") || vma.has_flag("pf")) return "a device's memory, which is not supported yet";
  if (vma.has_flag("ss")) return "a shadow stack, which is not supported yet";
  if (vma.has_flag("um") || vma.has_flag("ui")) return kBeingFilled;
  if (vma.has_flag("sl")) return "sealed (mseal), which is not supported yet";
  // A key on memory that may only be executed is the kernel's own, and comes back with the protection.
  if (vma.protection_key != 0 && vma.prot != PROT_EXEC)
    return "under a protection key (pkeys), which is not supported yet";
  if (vma.name == "[uprobes]") return kUprobes;
  return "";
}

/// The mapped file itself; where map_files is out of reach (it wants a capability), what the path leads to.
Result<struct stat> stat_mapped(int pid, const Vma& vma) {
  struct stat st{};
  std::string link = fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, vma.start, vma.end);
  if (::stat(link.c_str(), &st) == 0) return st;
  if (state::stat_in_tree(vma.name, st) && st.st_ino == vma.inode) return st;
  return fail(Code::kMismatch, vma.name, "its name now leads to another file, or to none");
}

/// The NT_GNU_BUILD_ID note of an ELF file, hex; empty when it has none. Bounded reads, nothing trusted.
std::string read_build_id(const std::string& path) {
  // Somebody may have put a fifo there meanwhile, which must not hold ckpt up.
  const UniqueFd fd(state::open_in_tree(path.c_str(), O_RDONLY | O_NONBLOCK));
  if (!fd) return "";
  std::byte head[4096];
  ssize_t got = ::pread(fd.get(), head, sizeof head, 0);
  Elf64_Ehdr elf{};
  if (got < static_cast<ssize_t>(sizeof elf)) return "";
  std::memcpy(&elf, head, sizeof elf);
  if (std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_phentsize != sizeof(Elf64_Phdr)) return "";
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr segment{};
    uint64_t at = elf.e_phoff + uint64_t{i} * sizeof segment;
    if (at > sizeof head || at + sizeof segment > static_cast<size_t>(got)) return "";
    std::memcpy(&segment, head + at, sizeof segment);
    if (segment.p_type != PT_NOTE || segment.p_filesz > sizeof head) continue;
    std::byte notes[4096];
    if (!io::pread_exact(fd.get(), MutableByteSpan(notes, segment.p_filesz), segment.p_offset, path)) continue;
    ByteReader reader(ByteSpan(notes, segment.p_filesz));
    while (auto header = reader.read<Elf64_Nhdr>()) {
      auto name = reader.take((uint64_t{header->n_namesz} + 3) / 4 * 4);
      auto value = reader.take((uint64_t{header->n_descsz} + 3) / 4 * 4);
      if (!name || !value) break;
      if (header->n_type != NT_GNU_BUILD_ID || header->n_namesz != 4 || std::memcmp(name->data(), "GNU", 4) != 0)
        continue;
      return bytes_to_hex(value->first(header->n_descsz));
    }
  }
  return "";
}

/// Build ids do not change while a file stays the same: `check` and the two inventories of a dump share them.
const std::string& cached_build_id(const store::FileIdentity& file) {
  static std::map<std::tuple<uint64_t, uint64_t, int64_t>, std::string> cache;
  auto key = std::make_tuple(file.device, file.inode, file.mtime_ns);
  auto it = cache.find(key);
  if (it == cache.end()) it = cache.emplace(key, read_build_id(file.path)).first;
  return it->second;
}

Result<void> take_vdso(int pid, const Vma& vma, store::ProcessImage& image) {
  std::vector<std::byte> code(vma.end - vma.start);
  CKPT_TRY(proc::read_memory(pid, proc::RemoteAddress(vma.start), code));
  image.vdso_start = vma.start;
  image.vdso_xxh128 = to_hex(xxh3_128(code));
  return {};
}

/// Of huge pages that no file of a mounted hugetlbfs has; a sentence when they cannot be carried.
Result<std::string> classify_huge(Walk& walk, int pid, const Vma& vma, store::MemoryMap& map) {
  if (vma.name.rfind("/SYSV", 0) == 0) return std::string("huge pages of a System V segment, which are not supported");
  struct stat st{};
  const std::string link = fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, vma.start, vma.end);
  if (::stat(link.c_str(), &st) != 0) return std::string("huge pages, of which only root can tell what they are");
  if (vma.shared) {
    map.kind = store::MappingKind::kSharedMemory;
    map.file_offset = vma.offset;
    CKPT_TRY_ASSIGN(map.shared_memory, walk.shared_memory.add_mapping(pid, vma));
    const auto index = static_cast<size_t>(map.shared_memory);
    return std::string(walk.out.image.shared_memory[index].huge_page != 0 ? "" : "huge pages that cannot be opened");
  }
  if (vma.name.rfind("/memfd:", 0) == 0)
    return std::string("a private mapping of a memfd of huge pages, which is not supported");
  map.kind = store::MappingKind::kHugePages;
  map.file_offset = static_cast<uint64_t>(st.st_blksize);
  return std::string();
}

/// Of a file of a mounted hugetlbfs.
std::string refused_huge_file(const Vma& vma) {
  if (!vma.shared) return "a private mapping of a file of huge pages, which is not supported";
  return vma.name.ends_with(" (deleted)") ? "a deleted file of huge pages, which is not supported" : "";
}

/// Fills kind and file of one mapping; a sentence when it cannot be carried.
Result<std::string> classify(Walk& walk, size_t process, const Vma& vma, store::MemoryMap& map) {
  using store::MappingKind;
  store::TreeImage& image = walk.out.image;
  const int pid = walk.members[process].entry.pid;
  if (is_kernel_mapping(vma)) {
    map.kind = MappingKind::kVdso;
    if (vma.name == "[vdso]") CKPT_TRY(take_vdso(pid, vma, image.processes[process]));
    return std::string();
  }
  if (std::string why = refused_flag(vma); !why.empty()) return why;
  if (is_aio_ring(vma)) {
    map.kind = MappingKind::kAio;
    map.file_offset = vma.offset;
    return std::string();
  }
  if (vma.name == kUringMapping) {
    map.kind = MappingKind::kIoUring;
    map.file_offset = vma.offset;
    return std::string();
  }
  constexpr std::string_view kUnnamed = "anon_inode:";
  if (vma.name.rfind(kUnnamed, 0) == 0) return vma.name.substr(kUnnamed.size()) + ", which is not supported";
  if (vma.name.rfind("/secretmem", 0) == 0) return std::string("secret memory, which nobody else may read");
  if (vma.has_flag("ht")) {
    const bool nameless =
        vma.name == "/anon_hugepage (deleted)" || vma.name.rfind("/memfd:", 0) == 0 || vma.name.rfind("/SYSV", 0) == 0;
    if (nameless) return classify_huge(walk, pid, vma, map);
    if (std::string why = refused_huge_file(vma); !why.empty()) return why;
  }
  const bool anonymous = vma.inode == 0;
  // mmap(MAP_SHARED | MAP_ANONYMOUS) makes an object, too: /proc/self/map_files maps it privately.
  const bool object =
      vma.name.rfind("/memfd:", 0) == 0 || vma.name.rfind("/SYSV", 0) == 0 || vma.name == "/dev/zero (deleted)";
  if (object || (anonymous && vma.shared)) {
    map.kind = vma.shared ? MappingKind::kSharedMemory : MappingKind::kPrivateFile;
    map.file_offset = vma.offset;
    CKPT_TRY_ASSIGN(map.shared_memory, walk.shared_memory.add_mapping(pid, vma));
    return std::string();
  }
  if (anonymous) {
    map.kind = vma.has_flag("dp") ? MappingKind::kDroppable : MappingKind::kAnonymous;
    return std::string();
  }
  Result<int> file = walk.files.find(vma.name, vma.inode);
  if (*file < 0) {
    auto st = stat_mapped(pid, vma);
    std::string access = fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, vma.start, vma.end);
    file = st ? walk.files.add(vma.name, *st, access) : Result<int>(std::move(st).error());
  }
  if (!file && !answers_no(file.error().code)) return std::move(file).error();
  if (!file) return file.error().message;
  store::FileIdentity& identity = image.files[static_cast<size_t>(*file)];
  if (vma.name.rfind("/dev/nvidia", 0) == 0) return std::string("memory of a GPU");
  if (!S_ISREG(identity.mode)) return std::string("a device mapped into memory, which is not supported yet");
  map.file = *file;
  map.file_offset = vma.offset;
  map.kind = vma.shared ? MappingKind::kSharedFile : MappingKind::kPrivateFile;
  if ((vma.prot & PROT_EXEC) != 0 && !identity.deleted) identity.build_id = cached_build_id(identity);
  return std::string();
}

/// The mappings of now with the VmFlags of then. False: not all of them were there then.
bool take_flags_over(const std::vector<Vma>& then, std::vector<Vma>& now) {
  auto at = then.begin();
  for (Vma& vma : now) {
    while (at != then.end() && at->start < vma.start) ++at;
    bool same = at != then.end() && at->start == vma.start && at->end == vma.end && at->prot == vma.prot &&
                at->shared == vma.shared && at->offset == vma.offset && at->inode == vma.inode && at->name == vma.name;
    if (!same && vma.name != "[vsyscall]") return false;
    if (same) vma.flags = at->flags, vma.protection_key = at->protection_key;
  }
  return true;
}

Result<std::vector<Vma>> read_with_flags(int pid, const Inventory* earlier) {
  const int then = earlier != nullptr ? earlier->find(pid) : -1;
  if (then >= 0) {
    const std::vector<Vma>& known = earlier->vmas[static_cast<size_t>(then)];
    CKPT_TRY_ASSIGN(std::vector<Vma> vmas, proc::read_maps(pid, false, known.size()));
    if (take_flags_over(known, vmas)) return vmas;
  }
  return proc::read_maps(pid, true);
}

}  // namespace

bool is_of_gpu(std::string_view mapping) {
  return mapping.rfind("/dev/nvidia", 0) == 0 || mapping.substr(mapping.rfind('/') + 1).rfind("libcuda.so", 0) == 0;
}

Result<void> look_at_maps(Walk& walk, size_t process) {
  CKPT_TRY_ASSIGN(walk.seen[process].vmas, read_with_flags(walk.members[process].entry.pid, walk.options.mappings()));
  return {};
}

namespace {

/// The kernel's own, which is in every process, and what the driver takes away.
bool is_left_out(Walk& walk, size_t process, const Vma& vma) {
  if (is_of_gpu(vma.name)) walk.out.gpus[process] = true;
  if (vma.name == "[vsyscall]") return true;
  if (!walk.options.gpus_leave || vma.name.rfind("/dev/nvidia", 0) != 0) return false;
  walk.out.gpu_files[process].insert(vma.name);
  return true;
}

}  // namespace

Result<void> inventory_maps(Walk& walk, size_t process) {
  const int pid = walk.members[process].entry.pid;
  // Not into a vector of its own: of fresh memory the first touch is what costs, where there are thousands.
  std::vector<Vma>& vmas = walk.out.vmas[process] = std::move(walk.seen[process].vmas);
  std::erase_if(vmas, [&](const Vma& vma) { return is_left_out(walk, process, vma); });
  std::vector<store::MemoryMap>& maps = walk.out.image.processes[process].maps;
  maps.reserve(vmas.size());
  for (const Vma& vma : vmas) {
    store::MemoryMap map;
    map.start = vma.start, map.end = vma.end, map.prot = vma.prot, map.name = vma.name;
    map.flags = lasting_flags(vma);
    CKPT_TRY_ASSIGN(std::string why, classify(walk, process, vma, map));
    if (!why.empty()) {
      std::string name = vma.name.empty() ? "" : " " + vma.name;
      walk.out.block(process, fmt::format("mapping {:x}-{:x}{}", vma.start, vma.end, name), why);
    }
    maps.push_back(std::move(map));
  }
  if (vmas.empty()) return fail(Code::kNotFound, "process " + std::to_string(pid), "has ended");
  return {};
}

}  // namespace ckpt::capture
