#include "lib/state/files/file_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/state/files/plain_devices.h"
#include "lib/state/files/without_links.h"
#include "lib/state/mounts/made.h"

namespace ckpt::restore {

using store::FileIdentity;

namespace {

void add_uses(const store::ProcessImage& image, std::vector<FileUse>& uses) {
  for (const auto& map : image.maps) {
    if (map.file < 0) continue;
    FileUse& use = uses[static_cast<size_t>(map.file)];
    use.needed = true;
    (maps_for_writing(map) ? use.written : use.mapped) = true;
    if (maps_for_writing(map)) use.written_up_to = std::max(use.written_up_to, map.file_offset + (map.end - map.start));
  }
  if (image.exe >= 0) uses[static_cast<size_t>(image.exe)].needed = uses[static_cast<size_t>(image.exe)].mapped = true;
  for (int folder : {image.cwd, image.root}) {
    if (folder >= 0) uses[static_cast<size_t>(folder)].needed = true;
  }
  if (image.root >= 0) uses[static_cast<size_t>(image.root)].is_root = true;
}

bool has_owner_and_mode(const FileIdentity& file, const FileNow& now) {
  return now.st.stx_uid == file.uid && now.st.stx_gid == file.gid && now.st.stx_mode == file.mode;
}

/// The number of a device may be another one after a boot; then the file's inode, its owner, its mode and that it has
/// not become older must do.
bool is_same_file(const FileIdentity& file, const FileNow& now) {
  // ckpt has made it itself, from the image.
  if (const auto made = state::made_device(file.device)) return now.device() == *made;
  // The kernel numbers devices and folders of an overlay anew, and files whose upper folder is in memory.
  if (state::is_on_made_overlay(now.handle.get())) {
    return now.st.stx_ino == file.inode ||
           (has_owner_and_mode(file, now) && (S_ISDIR(file.mode) || now.st.stx_size == file.size));
  }
  if (now.st.stx_ino != file.inode) return false;
  // Numbers are given out again. Older images say 0 for whose a file is.
  const bool of_another = file.uid != 0 && now.st.stx_uid != file.uid;
  if (now.device() == file.device) return !of_another;
  const bool older =
      S_ISREG(file.mode) && (now.st.stx_size < file.size || mtime_ns(now.st) < file.mtime_ns);
  return has_owner_and_mode(file, now) && !older;
}

/// Nobody but the kernel makes a file there, and none of them has a number that lasts.
bool is_of_kernel(const std::string& path) { return path.rfind("/proc/", 0) == 0 || path.rfind("/sys/", 0) == 0; }

bool is_plain_device(const struct statx& st) {
  return state::is_plain_device(st.stx_mode, makedev(st.stx_rdev_major, st.stx_rdev_minor));
}

bool leads_to_plain_device(int fd) {
  struct stat st {};
  return fd >= 0 && ::fstat(fd, &st) == 0 && state::is_plain_device(st.st_mode, st.st_rdev);
}

/// What was opened outside of the processes' root folder has no name there, or one that something else has: it is
/// ckpt's own.
int instead_of(int fd, const std::string& path) {
  struct stat own {};
  if (!state::is_own_plain_device(path, own)) return fd;
  if (fd >= 0) ::close(fd);
  const int opened = ::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC);
  return opened < 0 ? -errno : opened;
}

}  // namespace

dev_t FileNow::device() const { return makedev(st.stx_dev_major, st.stx_dev_minor); }

std::vector<FileUse> uses_of_files(const store::TreeImage& tree) {
  std::vector<FileUse> uses(tree.files.size());
  for (const auto& process : tree.processes) add_uses(process, uses);
  for (const auto& descriptor : tree.descriptors) {
    if (descriptor.file < 0) continue;
    FileUse& use = uses[static_cast<size_t>(descriptor.file)];
    use.needed = true;
    if (descriptor.written_by_process || (descriptor.flags & O_ACCMODE) != O_RDONLY) {
      use.written = true;
      use.written_up_to = std::max(use.written_up_to, descriptor.offset);
    } else if ((descriptor.flags & O_PATH) == 0) {
      use.read = true;
    }
  }
  return uses;
}

const std::string& path_of(const FileIdentity& file) { return file.deleted ? file.other_name : file.path; }

Result<FileNow> look_at(const FileIdentity& file) {
  const std::string& path = path_of(file);
  FileNow now;
  int fd = open_without_links(path.c_str(), O_PATH | (S_ISLNK(file.mode) ? O_NOFOLLOW : 0));
  if (S_ISCHR(file.mode) && !leads_to_plain_device(fd)) fd = instead_of(fd, path);
  if (fd == -ELOOP) return fail(Code::kMismatch, path, "is, or lies behind, a symbolic link now");
  if (fd < 0) return sys_error(-fd, path, "is needed by the process");
  now.handle = UniqueFd(fd);
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &now.st) != 0) return sys_error(path, "cannot be described");
  return now;
}

bool is_theirs_already(const FileIdentity& file, const FileNow& now) {
  if (is_of_kernel(path_of(file)) || is_plain_device(now.st)) return true;
  return is_same_file(file, now) && has_owner_and_mode(file, now);
}

void FileComparison::compare(const FileIdentity& file, const FileUse& use, const FileNow& now) {
  const std::string& path = path_of(file);
  const bool same = is_same_file(file, now) || is_of_kernel(path);
  if ((now.st.stx_mode & S_IFMT) != (file.mode & S_IFMT) || (S_ISCHR(file.mode) && !is_plain_device(now.st)))
    return reasons_.add(Code::kMismatch, path + ": is another kind of file than when the image was taken");
  if (is_allowed(path)) {
    if (!same || now.st.stx_size != file.size)
      progress_.note(path + ": is not what it was when the image was taken, as allowed");
    return;
  }
  if (S_ISFIFO(file.mode) && !same)
    return refuse(path + ": is another named pipe than the one that the process had open");
  if (S_ISDIR(file.mode) && use.is_root && path != "/" && !same)
    return refuse(path + ": is another folder than the root of the process");
  if (!S_ISREG(file.mode) || is_of_kernel(path))
    return;  // a folder's entries come and go, a device has no bytes of its own
  if (use.written) compare_written(file, use, now, same);
  else if (use.mapped || (use.read && !same)) compare_exactly(file, now);
  else if (use.read) compare_read(file, now);
}

bool FileComparison::is_allowed(const std::string& path) const {
  return std::any_of(options_.allow_changed.begin(), options_.allow_changed.end(), [&](const std::string& pattern) {
    return pattern == path || ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
  });
}
void FileComparison::refuse(std::string text) {
  reasons_.add(Code::kMismatch, std::move(text));
  reasons_.hint("--allow-changed FILE restores with a file as it is now");
}

void FileComparison::compare_written(const FileIdentity& file, const FileUse& use, const FileNow& now, bool same) {
  const std::string& path = path_of(file);
  const uint64_t size = now.st.stx_size;
  if (!same) {
    refuse(path + ": is another file than the one that the process was writing");
  } else if (size < std::min(use.written_up_to, file.size)) {
    refuse(fmt::format("{}: the process was writing at byte {}, and the file has only {} now", path, use.written_up_to,
                       size));
  } else if (size > file.size) {
    progress_.note(fmt::format("{}: has grown by {} bytes since the image was taken; the process goes on at byte {}",
                               path, size - file.size, use.written_up_to));
  } else if (size < file.size) {
    progress_.note(fmt::format("{}: is {} bytes shorter than when the image was taken", path, file.size - size));
  }
}

void FileComparison::compare_exactly(const FileIdentity& file, const FileNow& now) {
  if (now.st.stx_size != file.size)
    refuse(fmt::format("{}: has changed since the image was taken ({} bytes then, {} now)", file.path, file.size,
                       now.st.stx_size));
  else if (mtime_ns(now.st) != file.mtime_ns)
    refuse(fmt::format("{}: has been modified since the image was taken", file.path));
}

/// The same file: what came to it the process would have seen, too, had it gone on.
void FileComparison::compare_read(const FileIdentity& file, const FileNow& now) {
  const uint64_t size = now.st.stx_size;
  if (size < file.size)
    refuse(
        fmt::format("{}: has changed since the image was taken ({} bytes then, {} now)", file.path, file.size, size));
  else if (size > file.size)
    progress_.note(fmt::format("{}: has grown by {} bytes since the image was taken", file.path, size - file.size));
  else if (mtime_ns(now.st) != file.mtime_ns)
    progress_.note(fmt::format("{}: has been written to since the image was taken", file.path));
}

}  // namespace ckpt::restore
