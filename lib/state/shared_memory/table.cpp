#include "lib/state/shared_memory/table.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <string_view>

#include "lib/base/io.h"
#include "lib/state/files/extended_attributes.h"
#include "lib/state/files/write_hint.h"
#include "lib/state/inventory.h"
#include "lib/state/system_v_ipc/capture.h"

namespace ckpt::capture {

namespace {

/// "/memfd:name (deleted)" -> "name".
std::string memfd_name(std::string_view link) {
  constexpr std::string_view kPrefix = "/memfd:", kDeleted = " (deleted)";
  link.remove_prefix(kPrefix.size());
  if (link.ends_with(kDeleted)) link.remove_suffix(kDeleted.size());
  return std::string(link);
}

/// The inode number of a System V segment is its id, which another object of the same file system may have, too.
constexpr uint64_t kSystemVDevice = ~uint64_t{0};

}  // namespace

int SharedMemoryTable::append(store::SharedMemory::Kind kind, uint64_t device, uint64_t inode) {
  const int index = static_cast<int>(out_.image.shared_memory.size());
  by_inode_.emplace(std::make_pair(device, inode), index);
  store::SharedMemory& memory = out_.image.shared_memory.emplace_back();
  out_.shared_memory.emplace_back();
  memory.kind = kind, memory.inode = inode;
  return index;
}

void SharedMemoryTable::describe(int index, int fd) {
  store::SharedMemory& memory = out_.image.shared_memory[static_cast<size_t>(index)];
  struct stat st{};
  if (::fstat(fd, &st) == 0) {
    memory.size = static_cast<uint64_t>(st.st_size);
    if (struct statfs fs{}; ::fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC)
      memory.huge_page = static_cast<uint64_t>(fs.f_bsize);
    memory.mode = st.st_mode & 07777, memory.uid = st.st_uid, memory.gid = st.st_gid;
  }
  int seals = memory.kind == store::SharedMemory::Kind::kMemfd ? ::fcntl(fd, F_GET_SEALS) : 0;
  memory.seals = seals > 0 ? static_cast<uint32_t>(seals) : 0;
  if (memory.kind == store::SharedMemory::Kind::kMemfd) memory.write_hint = state::write_hint_of(fd);
}

Result<void> SharedMemoryTable::take_attributes(int index, const std::string& access) {
  store::SharedMemory& memory = out_.image.shared_memory[static_cast<size_t>(index)];
  auto found = state::read_extended_attributes(access);
  if (!found && found.error().code != Code::kUnsupported) return std::move(found).error();
  if (found) memory.attributes = std::move(*found);
  else out_.blockers.push_back({"memfd " + memory.name, found.error().message, ""});
  return {};
}

Result<int> SharedMemoryTable::add_memfd(const std::string& link, const std::string& access) {
  struct stat st{};
  if (::stat(access.c_str(), &st) != 0) return sys_error(access, "cannot stat");
  if (auto known = by_inode_.find({st.st_dev, st.st_ino});
      known != by_inode_.end() && out_.shared_memory[static_cast<size_t>(known->second)].fd)
    return known->second;
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(access, O_RDONLY));
  auto known = by_inode_.find({st.st_dev, st.st_ino});
  int index =
      known != by_inode_.end() ? known->second : append(store::SharedMemory::Kind::kMemfd, st.st_dev, st.st_ino);
  out_.image.shared_memory[static_cast<size_t>(index)].name = memfd_name(link);
  describe(index, fd.get());
  out_.shared_memory[static_cast<size_t>(index)].fd = std::move(fd);
  CKPT_TRY(take_attributes(index, access));
  return index;
}

Result<int> SharedMemoryTable::add_mapping(int pid, const proc::Vma& vma) {
  const bool memfd = vma.name.rfind("/memfd:", 0) == 0;
  const bool segment = vma.name.rfind("/SYSV", 0) == 0;
  const uint64_t device = segment ? kSystemVDevice : vma.device;
  using Kind = store::SharedMemory::Kind;
  auto known = by_inode_.find({device, vma.inode});
  int index = known != by_inode_.end() ? known->second
                                       : append(memfd     ? Kind::kMemfd
                                                : segment ? Kind::kSystemV
                                                          : Kind::kAnonymous,
                                                device, vma.inode);
  store::SharedMemory& memory = out_.image.shared_memory[static_cast<size_t>(index)];
  if (memfd) memory.name = memfd_name(vma.name);
  if (segment) memory.id = static_cast<int>(vma.inode);
  ContentSource& source = out_.shared_memory[static_cast<size_t>(index)];
  if (source.fd) return index;
  auto fd = io::open_file(fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, vma.start, vma.end), O_RDONLY);
  if (fd) {
    describe(index, fd->get());
    source.fd = std::move(*fd);
    if (memfd) CKPT_TRY(take_attributes(index, fmt::format("/proc/self/fd/{}", source.fd.get())));
    return index;
  }
  const uint64_t size = vma.end - vma.start;
  memory.size = std::max(memory.size, vma.offset + size);
  if ((vma.prot & PROT_READ) != 0) views_[index].push_back({pid, vma.start, vma.offset, size});
  return index;
}

Result<void> SharedMemoryTable::add_segment(const store::SharedSegment& segment) {
  const auto inode = static_cast<uint64_t>(segment.identity.id);
  auto known = by_inode_.find({kSystemVDevice, inode});
  int index =
      known != by_inode_.end() ? known->second : append(store::SharedMemory::Kind::kSystemV, kSystemVDevice, inode);
  store::SharedMemory& memory = out_.image.shared_memory[static_cast<size_t>(index)];
  memory.id = segment.identity.id, memory.key = segment.identity.key, memory.size = segment.size;
  memory.mode = segment.identity.mode, memory.uid = segment.identity.uid, memory.gid = segment.identity.gid;
  UniqueFd& source = out_.shared_memory[static_cast<size_t>(index)].fd;
  if (known == by_inode_.end()) {
    CKPT_TRY_ASSIGN(source, copy_segment(segment));
  }
  return {};
}

void SharedMemoryTable::find_sources() {
  for (size_t i = 0; i < out_.shared_memory.size(); ++i) {
    ContentSource& source = out_.shared_memory[i];
    if (source.fd || out_.image.shared_memory[i].size == 0) continue;
    for (const View& view : views_[static_cast<int>(i)]) {
      if (view.offset != 0 || view.size != out_.image.shared_memory[i].size) continue;
      source.pid = view.pid, source.shift = static_cast<int64_t>(view.start);
    }
    if (source.pid == 0) {
      out_.blockers.push_back({"shared memory " + std::to_string(out_.image.shared_memory[i].inode),
                               "no process maps all of it: reading it needs CAP_CHECKPOINT_RESTORE", ""});
    }
  }
}

}  // namespace ckpt::capture
