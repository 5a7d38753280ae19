#include "lib/state/mounts/memory_files_restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/unique_fd.h"
#include "lib/state/mounts/made.h"
#include "lib/state/mounts/open_below.h"
#include "lib/state/mounts/plan.h"
#include "lib/state/shared_memory/restore.h"

namespace ckpt::restore {

namespace {

using store::MemoryFile;

Error failure(const MemoryFile& file, const char* what) {
  return sys_error("/" + file.path + " of a file system in memory", what);
}

/// A time that utimensat takes: the image's, with the other one left alone.
Result<void> set_time(int root, const MemoryFile& file) {
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t nanoseconds = (file.mtime_ns % kSecond + kSecond) % kSecond;
  const timespec times[2] = {{0, UTIME_OMIT}, {(file.mtime_ns - nanoseconds) / kSecond, nanoseconds}};
  const UniqueFd fd = state::open_below(root, file.path, O_PATH);
  if (!fd || ::utimensat(fd.get(), "", times, AT_EMPTY_PATH) != 0) return failure(file, "cannot be given its time");
  return {};
}

class Builder {
 public:
  Builder(const std::vector<MemoryFile>& files, int root) : files_(files), root_(root) {}

  Result<void> run() {
    for (const MemoryFile& file : files_) {
      if (!file.path.empty()) CKPT_TRY(create(file));
      if (file.link_of < 0) CKPT_TRY(describe(file));
    }
    // Folders change with every entry that they get: after all of them.
    for (const MemoryFile& file : files_) {
      if (file.link_of < 0) CKPT_TRY(set_time(root_, file));
    }
    return {};
  }

 private:
  Result<void> create(const MemoryFile& file) {
    const size_t slash = file.path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : file.path.substr(0, slash);
    const std::string name = file.path.substr(slash == std::string::npos ? 0 : slash + 1);
    const UniqueFd in = state::open_below(root_, folder, O_PATH | O_DIRECTORY);
    if (!in || !make_entry(file, in.get(), name.c_str())) return failure(file, "cannot be made");
    return {};
  }

  bool make_entry(const MemoryFile& file, int in, const char* name) {
    constexpr mode_t kClosed = 0600;
    if (file.link_of >= 0) {
      const UniqueFd first = state::open_below(root_, files_[static_cast<size_t>(file.link_of)].path, O_PATH);
      return first && ::linkat(first.get(), "", in, name, AT_EMPTY_PATH) == 0;
    }
    if (S_ISDIR(file.mode)) return ::mkdirat(in, name, 0700) == 0;
    if (S_ISLNK(file.mode)) return ::symlinkat(file.target.c_str(), in, name) == 0;
    if (!S_ISREG(file.mode)) return ::mknodat(in, name, (file.mode & S_IFMT) | kClosed, file.device) == 0;
    const UniqueFd fd(::openat(in, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kClosed));
    return fd && ::ftruncate(fd.get(), static_cast<off_t>(file.size)) == 0;
  }

  Result<void> describe(const MemoryFile& file) {
    const UniqueFd fd = state::open_below(root_, file.path, O_PATH);
    if (!fd || ::fchownat(fd.get(), "", file.uid, file.gid, AT_EMPTY_PATH) != 0)
      return failure(file, "cannot be given its owner");
    const std::string behind = fmt::format("/proc/self/fd/{}", fd.get());
    // What changing the owner takes away (set-user-id, capabilities) comes after it.
    if (!S_ISLNK(file.mode) && ::chmod(behind.c_str(), file.mode & 07777) != 0)
      return failure(file, "cannot be given its mode");
    for (const store::FileAttribute& one : file.attributes) {
      if (::setxattr(behind.c_str(), one.name.c_str(), one.value.data(), one.value.size(), 0) != 0)
        return failure(file, ("cannot be given its attribute " + one.name).c_str());
    }
    return {};
  }

  const std::vector<MemoryFile>& files_;
  int root_;
};

Result<void> make_read_only(int root, const std::string& where) {
  const UniqueFd fs(::fspick(root, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC));
  if (!fs || ::fsconfig(fs.get(), FSCONFIG_SET_FLAG, "ro", nullptr, 0) != 0 ||
      ::fsconfig(fs.get(), FSCONFIG_CMD_RECONFIGURE, nullptr, nullptr, 0) != 0)
    return sys_error(where, "cannot be made read-only");
  return {};
}

}  // namespace

Result<void> make_memory_files(const std::vector<MemoryFile>& files, int root) { return Builder(files, root).run(); }

Result<void> fill_memory_files(const store::ImageReader& image, ProgressSink& progress, const Cancel& cancel) {
  for (const store::MountedFilesystem* filesystem : filesystems_of(image.manifest().tree.namespaces)) {
    const int root = state::made_root(filesystem->device);
    if (root < 0 || filesystem->files.empty()) continue;
    for (const MemoryFile& file : filesystem->files) {
      if (!file.has_bytes()) continue;
      const UniqueFd fd = state::open_below(root, file.path, O_WRONLY);
      if (!fd) return failure(file, "cannot be filled");
      CKPT_TRY(fill_file(image, file.space, file.size, fd.get(), progress, cancel));
      CKPT_TRY(set_time(root, file));
    }
    if (state::is_read_only(filesystem->options)) CKPT_TRY(make_read_only(root, filesystem->source));
  }
  return {};
}

}  // namespace ckpt::restore
