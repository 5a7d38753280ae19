// Files and shared memory, each described once for the whole tree.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/capture/ipc.h"
#include "lib/capture/inventory_internal.h"

namespace ckpt::capture {

namespace {

constexpr std::string_view kDeleted = " (deleted)";

bool ends_with(std::string_view text, std::string_view tail) {
  return text.size() > tail.size() && text.substr(text.size() - tail.size()) == tail;
}

}  // namespace

namespace {

/// Another name of a file, in the folder where the deleted one was; empty: there is none.
std::string name_beside(const std::string& path, const struct stat& st) {
  std::error_code ec;
  std::filesystem::directory_iterator it(std::filesystem::path(path).parent_path(), ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    struct stat other{};
    if (::lstat(it->path().c_str(), &other) == 0 && other.st_ino == st.st_ino && other.st_dev == st.st_dev) return it->path().string();
  }
  return "";
}

}  // namespace

int FileTable::find(const std::string& path, uint64_t inode) const {
  auto known = by_path_.find({path, inode});
  return known != by_path_.end() ? known->second : -1;
}

namespace {

/// Where the kernel itself makes files and folders: one that is gone does not come back.
bool is_on_kernels_own(const std::string& access) {
  struct statfs fs{};
  if (::statfs(access.c_str(), &fs) != 0) return false;
  constexpr std::array<unsigned long, 8> kOwn = {PROC_SUPER_MAGIC,   SYSFS_MAGIC,    CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
                                                 DEBUGFS_MAGIC,      TRACEFS_MAGIC,  SECURITYFS_MAGIC,   BPF_FS_MAGIC};
  return std::find(kOwn.begin(), kOwn.end(), static_cast<unsigned long>(fs.f_type)) != kOwn.end();
}

}  // namespace

int FileTable::append(const std::string& path, const struct stat& st) {
  const int index = static_cast<int>(out_.image.files.size());
  by_path_.emplace(std::make_pair(path, static_cast<uint64_t>(st.st_ino)), index);
  store::FileIdentity& file = out_.image.files.emplace_back();
  out_.ghosts.emplace_back();
  file.path = path;
  file.device = st.st_dev, file.inode = st.st_ino;
  file.size = static_cast<uint64_t>(st.st_size);
  file.mtime_ns = st.st_mtim.tv_sec * 1'000'000'000ll + st.st_mtim.tv_nsec;
  file.mode = st.st_mode;
  file.uid = st.st_uid, file.gid = st.st_gid;
  return index;
}

Result<int> FileTable::add(const std::string& path, const struct stat& st, const std::string& access) {
  if (int known = find(path, st.st_ino); known >= 0) return known;
  struct stat named{};
  bool there = (S_ISLNK(st.st_mode) ? ::lstat(path.c_str(), &named) : ::stat(path.c_str(), &named)) == 0;
  if (there && named.st_ino == st.st_ino && named.st_dev == st.st_dev) return append(path, st);
  if (ends_with(path, kDeleted)) return add_deleted(path, st, access);
  return fail(Code::kAnswerNo, path, there ? "its name now leads to another file" : "its name cannot be reached from here");
}

Result<int> FileTable::add_deleted(const std::string& path, const struct stat& st, const std::string& access) {
  const bool folder = S_ISDIR(st.st_mode);
  if (!folder && !S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode)) return fail(Code::kAnswerNo, path, "was deleted while in use, and is no regular file");
  if (is_on_kernels_own(access)) return fail(Code::kAnswerNo, path, "is gone, and nobody but the kernel can make it");
  std::string other_name = folder || st.st_nlink == 0 ? "" : name_beside(path, st);
  if (!folder && st.st_nlink != 0 && other_name.empty()) {
    return fail(Code::kAnswerNo, path, "this name of it was deleted while in use; another is left, in an unknown folder");
  }
  auto [known, is_new] = ghosts_.emplace(st.st_dev, st.st_ino);
  const uint64_t size = static_cast<uint64_t>(st.st_blocks) * 512;  // without its holes
  if (is_new && S_ISREG(st.st_mode) && other_name.empty() && size > ghost_limit_) {
    ghosts_.erase(known);
    return fail(Code::kAnswerNo, path, fmt::format("was deleted while in use, and its {} are above --ghost-limit", human_bytes(size)));
  }
  const int index = append(path, st);
  store::FileIdentity& file = out_.image.files[static_cast<size_t>(index)];
  file.path = path.substr(0, path.size() - kDeleted.size());
  file.deleted = true;
  file.other_name = other_name;
  if (!other_name.empty()) return index;
  if (!is_new) return index;  // the first has the bytes
  if (!S_ISREG(st.st_mode)) return index;
  // A description of our own: the target's offset stays where it is, and a file open for writing can be read.
  CKPT_TRY_ASSIGN(out_.ghosts[static_cast<size_t>(index)].fd, io::open_file(access, O_RDONLY | O_NOATIME));
  return index;
}

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
    memory.mode = st.st_mode & 07777, memory.uid = st.st_uid, memory.gid = st.st_gid;
  }
  int seals = memory.kind == store::SharedMemory::Kind::kMemfd ? ::fcntl(fd, F_GET_SEALS) : 0;
  memory.seals = seals > 0 ? static_cast<uint32_t>(seals) : 0;
}

namespace {

/// "/memfd:name (deleted)" -> "name".
std::string memfd_name(std::string_view link) {
  link.remove_prefix(std::string_view("/memfd:").size());
  if (ends_with(link, kDeleted)) link.remove_suffix(kDeleted.size());
  return std::string(link == kDeleted ? "" : link);
}

/// The inode number of a System V segment is its id, which another object of the same file system may have, too.
constexpr uint64_t kSystemVDevice = ~uint64_t{0};

}  // namespace

Result<int> SharedMemoryTable::add_memfd(const std::string& link, const std::string& access) {
  struct stat st{};
  if (::stat(access.c_str(), &st) != 0) return sys_error(access, "cannot stat");
  if (auto known = by_inode_.find({st.st_dev, st.st_ino}); known != by_inode_.end() && out_.shared_memory[static_cast<size_t>(known->second)].fd) return known->second;
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file(access, O_RDONLY));
  auto known = by_inode_.find({st.st_dev, st.st_ino});
  int index = known != by_inode_.end() ? known->second : append(store::SharedMemory::Kind::kMemfd, st.st_dev, st.st_ino);
  out_.image.shared_memory[static_cast<size_t>(index)].name = memfd_name(link);
  describe(index, fd.get());
  out_.shared_memory[static_cast<size_t>(index)].fd = std::move(fd);
  return index;
}

Result<int> SharedMemoryTable::add_mapping(int pid, const proc::Vma& vma) {
  const bool memfd = vma.name.rfind("/memfd:", 0) == 0;
  const bool segment = vma.name.rfind("/SYSV", 0) == 0;
  const uint64_t device = segment ? kSystemVDevice : vma.device;
  using Kind = store::SharedMemory::Kind;
  auto known = by_inode_.find({device, vma.inode});
  int index = known != by_inode_.end() ? known->second
                                       : append(memfd ? Kind::kMemfd : segment ? Kind::kSystemV : Kind::kAnonymous, device, vma.inode);
  store::SharedMemory& memory = out_.image.shared_memory[static_cast<size_t>(index)];
  if (memfd) memory.name = memfd_name(vma.name);
  if (segment) memory.id = static_cast<int>(vma.inode);
  ContentSource& source = out_.shared_memory[static_cast<size_t>(index)];
  if (source.fd) return index;
  auto fd = io::open_file(fmt::format("/proc/{}/map_files/{:x}-{:x}", pid, vma.start, vma.end), O_RDONLY);
  if (fd) {
    describe(index, fd->get());
    source.fd = std::move(*fd);
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
  int index = known != by_inode_.end() ? known->second : append(store::SharedMemory::Kind::kSystemV, kSystemVDevice, inode);
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
