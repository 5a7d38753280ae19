#include "lib/state/mounts/memory_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <map>
#include <memory>
#include <set>

#include "lib/state/files/file_state.h"
#include "lib/state/mounts/open_below.h"

namespace ckpt::capture {

namespace {

using store::MemoryFile;

/// Each with bytes takes a memory space of the image, and a descriptor while the tree stands still.
constexpr size_t kMostWithBytes = 8192, kMostFiles = 1 << 17;

bool is_gone(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP; }

/// Of the file behind an O_PATH descriptor, which the calls that take descriptors refuse.
std::string behind(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

Result<std::vector<store::FileAttribute>> read_attributes(int fd, const std::string& path) {
  std::vector<store::FileAttribute> out;
  std::vector<char> names(XATTR_LIST_MAX);
  const std::string file = behind(fd);
  const ssize_t length = ::listxattr(file.c_str(), names.data(), names.size());
  if (length < 0 && errno != ENOTSUP) return sys_error(path, "cannot be asked for its extended attributes");
  for (ssize_t at = 0; at < length;) {
    store::FileAttribute& one = out.emplace_back();
    one.name = names.data() + at;
    at += static_cast<ssize_t>(one.name.size()) + 1;
    one.value.resize(XATTR_SIZE_MAX);
    const ssize_t size = ::getxattr(file.c_str(), one.name.c_str(), one.value.data(), one.value.size());
    if (size < 0) return sys_error(path, "cannot be asked for its attribute " + one.name);
    one.value.resize(static_cast<size_t>(size));
  }
  return out;
}

Result<std::string> read_target(int fd, const std::string& path) {
  std::string out(PATH_MAX, '\0');
  const ssize_t length = ::readlinkat(fd, "", out.data(), out.size());
  if (length < 0) return sys_error(path, "cannot be read");
  out.resize(static_cast<size_t>(length));
  return out;
}

class Reader {
 public:
  Reader(int root, bool with_bytes) : root_(root), with_bytes_(with_bytes) {}

  Result<MemoryFiles> run() && {
    struct stat st {};
    if (::fstat(root_, &st) != 0) return sys_error("/", "cannot be looked at");
    device_ = st.st_dev;
    CKPT_TRY(add(""));
    // The list grows by what is found in the folders on it.
    for (size_t i = 0; i < out_.files.size(); ++i) {
      if (S_ISDIR(out_.files[i].mode) && hidden_.count(i) == 0) CKPT_TRY(add_entries(std::string(out_.files[i].path)));
    }
    return std::move(out_);
  }

 private:
  Result<void> add_entries(const std::string& path) {
    UniqueFd fd = state::open_below(root_, path, O_RDONLY | O_DIRECTORY | O_NOATIME);
    if (!fd && is_gone(errno)) return {};
    if (!fd) return sys_error("/" + path, "cannot be read");
    std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(fd.get()), ::closedir);
    if (!folder) return sys_error("/" + path, "cannot be read");
    (void)fd.release();
    while (const dirent* entry = ::readdir(folder.get())) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") CKPT_TRY(add(path.empty() ? name : path + "/" + name));
    }
    return {};
  }

  Result<void> add(const std::string& path) {
    UniqueFd fd = state::open_below(root_, path, O_PATH);
    if (!fd && is_gone(errno)) return {};
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) != 0) return sys_error("/" + path, "cannot be looked at");
    if (out_.files.size() == kMostFiles)
      return fail(Code::kUnsupported, "", fmt::format("has more than {} files", kMostFiles));
    MemoryFile& file = out_.files.emplace_back();
    if (st.st_dev != device_) return add_place(S_ISDIR(st.st_mode), path, file), Result<void>();
    file.path = path, file.mode = st.st_mode, file.uid = st.st_uid, file.gid = st.st_gid, file.inode = st.st_ino;
    file.mtime_ns = restore::mtime_ns(st);
    if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) file.device = st.st_rdev;
    if (S_ISREG(st.st_mode)) file.size = static_cast<uint64_t>(st.st_size);
    if (!S_ISDIR(st.st_mode) && st.st_nlink > 1) {
      auto [first, is_new] = links_.emplace(st.st_ino, static_cast<int>(out_.files.size()) - 1);
      if (!is_new) return file.link_of = first->second, Result<void>();
    }
    if (S_ISLNK(st.st_mode)) {
      CKPT_TRY_ASSIGN(file.target, read_target(fd.get(), "/" + path));
    } else {
      CKPT_TRY_ASSIGN(file.attributes, read_attributes(fd.get(), "/" + path));
    }
    return file.has_bytes() ? add_bytes(fd.get(), path) : Result<void>();
  }

  /// Something is mounted there that cannot be taken away: of what lies below nobody sees more than that it is there.
  void add_place(bool is_folder, const std::string& path, MemoryFile& file) {
    constexpr uint32_t kFolder = S_IFDIR | 0755, kFile = S_IFREG | 0644;
    file.path = path, file.mode = is_folder ? kFolder : kFile;
    hidden_.insert(out_.files.size() - 1);
  }

  Result<void> add_bytes(int fd, const std::string& path) {
    if (++with_content_ > kMostWithBytes)
      return fail(Code::kUnsupported, "", fmt::format("has more than {} files with content", kMostWithBytes));
    if (!with_bytes_) return {};
    UniqueFd bytes(::open(behind(fd).c_str(), O_RDONLY | O_NOATIME | O_CLOEXEC));
    if (!bytes) return sys_error("/" + path, "cannot be read");
    out_.bytes.push_back(std::move(bytes));
    return {};
  }

  int root_;
  bool with_bytes_;
  size_t with_content_ = 0;
  dev_t device_ = 0;
  std::set<size_t> hidden_;  ///< indices of folders and files that others are mounted on
  std::map<uint64_t, int> links_;  ///< by inode, of those with several names
  MemoryFiles out_;
};

}  // namespace

Result<MemoryFiles> read_memory_files(int root, bool with_bytes) {
  rlimit limit{};
  if (with_bytes && ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);  // where it stays, opening them says so
  }
  return Reader(root, with_bytes).run();
}

}  // namespace ckpt::capture
