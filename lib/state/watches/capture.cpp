#include "lib/state/watches/capture.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/state/files/tree_root.h"

namespace ckpt::capture {

namespace {

Error malformed(std::string_view line) {
  return Error(Code::kIo, "fdinfo", fmt::format("\"{}\" is not in the form that this ckpt knows", line));
}

template <class T>
bool parse_number(std::string_view text, T& out, int base) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return error == std::errc() && end == text.data() + text.size();
}

/// "name:value name:value ...".
std::map<std::string, std::string_view, std::less<>> fields_of(std::string_view line) {
  std::map<std::string, std::string_view, std::less<>> out;
  while (!line.empty()) {
    std::string_view value = take_field(line, ' ');
    std::string_view name = take_field(value, ':');
    out[std::string(name)] = value;
  }
  return out;
}
using Fields = std::map<std::string, std::string_view, std::less<>>;

template <class T>
bool take(const Fields& fields, std::string_view name, T& out, int base = 16) {
  auto found = fields.find(name);
  return found != fields.end() && parse_number(found->second, out, base);
}

/// The kernel's own form of a device number: 12 bits of major, 20 of minor.
uint64_t device_of(uint64_t kernel) { return makedev(kernel >> 20, kernel & 0xfffff); }

bool take_handle(const Fields& fields, FileFinder::Handle& out) {
  uint64_t device = 0;
  if (!take(fields, "ino", out.inode) || !take(fields, "sdev", device)) return false;
  out.device = device_of(device);
  auto bytes = fields.find("f_handle");
  if (bytes == fields.end() || !take(fields, "fhandle-type", out.type)) return true;  // the file system has none
  for (size_t i = 0; i + 1 < bytes->second.size() && out.bytes.size() < MAX_HANDLE_SZ; i += 2) {
    uint8_t byte = 0;
    if (!parse_number(bytes->second.substr(i, 2), byte, 16)) return false;
    out.bytes.push_back(byte);
  }
  return true;
}

/// Calls `visit(rest of the line)` for each line with this beginning.
template <class Visit>
Result<void> for_each_line(std::string_view text, std::string_view prefix, Visit visit) {
  while (!text.empty()) {
    std::string_view line = take_field(text, '\n');
    if (line.substr(0, prefix.size()) == prefix) CKPT_TRY(visit(line.substr(prefix.size())));
  }
  return {};
}

bool is_file(const std::string& path, const FileFinder::Handle& handle) {
  struct stat st{};
  return state::stat_in_tree(path, st) && st.st_dev == handle.device && st.st_ino == handle.inode;
}

/// The entry of a folder that is this file, or "".
std::string find_in(const std::string& folder, const FileFinder::Handle& handle) {
  UniqueFd fd(state::open_in_tree(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NONBLOCK));
  std::unique_ptr<DIR, int (*)(DIR*)> dir(fd ? ::fdopendir(fd.get()) : nullptr, ::closedir);
  if (dir) (void)fd.release();
  while (dirent* entry = dir ? ::readdir(dir.get()) : nullptr) {
    if (entry->d_ino != handle.inode) continue;
    std::string path = folder == "/" ? folder + entry->d_name : folder + "/" + entry->d_name;
    if (is_file(path, handle)) return path;
  }
  return "";
}

/// Runs `work` in a thread with a current folder of its own, which `FileFinder::find` changes: to name a file system
/// by an open file would need one opened for reading, and the target may be watching just that.
template <class Work>
auto with_own_folder(Work work) -> decltype(work()) {
  decltype(work()) out = fail(Code::kIo, "", "cannot have a current folder of its own");
  std::thread apart;
  const bool started = start_thread(apart, [&] {
    if (::unshare(CLONE_FS) == 0) out = work();
  });
  if (!started) return no_thread("");
  apart.join();
  return out;
}

Result<int> waiting_bytes(int fd, const char* subject) {
  int waiting = 0;
  if (::ioctl(fd, FIONREAD, &waiting) != 0) return sys_error(subject, "cannot tell whether events wait");
  return waiting;
}

}  // namespace

Result<FileFinder> FileFinder::create(std::vector<std::string> hints) {
  CKPT_TRY_ASSIGN(std::string text, state::read_tree_mountinfo());
  FileFinder out;
  out.hints_ = std::move(hints);
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = take_field(rest, '\n');
    Mount mount;
    bool ok = parse_number(take_field(line, ' '), mount.id, 10);
    (void)take_field(line, ' ');  // the parent's id
    std::string_view device = take_field(line, ' ');
    unsigned first = 0, second = 0;
    ok = ok && parse_number(take_field(device, ':'), first, 10) && parse_number(device, second, 10);
    (void)take_field(line, ' ');  // the root of the mount
    mount.device = makedev(first, second);
    mount.path = unescape_octal(take_field(line, ' '));
    if (!ok) return malformed("mountinfo");
    out.mounts_.push_back(std::move(mount));
  }
  return out;
}

/// What the handle leads to on the file system of `mount`; empty where it leads nowhere. Changes the current folder.
UniqueFd FileFinder::open_handle(const Mount& mount, const Handle& handle) {
  if (handle.bytes.empty()) return {};
  const UniqueFd folder(state::open_in_tree(mount.path.c_str(), O_PATH | O_DIRECTORY));
  if (!folder || ::fchdir(folder.get()) != 0) return {};
  std::vector<std::byte> room(sizeof(file_handle) + handle.bytes.size());
  auto* raw = reinterpret_cast<file_handle*>(room.data());
  raw->handle_bytes = static_cast<unsigned>(handle.bytes.size());
  raw->handle_type = handle.type;
  std::memcpy(raw->f_handle, handle.bytes.data(), handle.bytes.size());
  return UniqueFd(::open_by_handle_at(AT_FDCWD, raw, O_PATH | O_CLOEXEC));
}

Result<FileFinder::NamedFile> FileFinder::find(const Handle& handle) const {
  auto found = [&](const std::string& path) { return NamedFile{path, handle.device, handle.inode}; };
  for (const Mount& mount : mounts_) {
    if (mount.device != handle.device) continue;
    if (is_file(mount.path, handle)) return found(mount.path);
    UniqueFd file = open_handle(mount, handle);
    struct stat st {
    }, named{};
    if (!file || ::fstat(file.get(), &st) != 0) continue;
    if (st.st_nlink == 0) return fail(Code::kMismatch, "", "a file that was deleted");
    char name[PATH_MAX];
    ssize_t size = ::readlink(fmt::format("/proc/self/fd/{}", file.get()).c_str(), name, sizeof name);
    std::string path(name, size > 0 ? static_cast<size_t>(size) : 0);
    // Not so when another file is mounted over it, or the kernel has forgotten its name.
    if (state::stat_in_tree(path, named) && named.st_dev == st.st_dev && named.st_ino == st.st_ino)
      return NamedFile{path, st.st_dev, st.st_ino};
  }
  for (const std::string& hint : hints_) {
    if (is_file(hint, handle)) return found(hint);
    std::string path = find_in(hint, handle);
    if (!path.empty()) return found(path);
  }
  return fail(Code::kUnsupported, "",
              fmt::format("a file (device {}:{}, inode {}) whose name cannot be found", major(handle.device),
                          minor(handle.device), handle.inode));
}

Result<std::string> FileFinder::path_of_mount(int mount_id) const {
  for (const Mount& mount : mounts_) {
    if (mount.id == mount_id) return mount.path;
  }
  return fail(Code::kUnsupported, "", fmt::format("mount {}, which is in another mount namespace", mount_id));
}

Result<std::string> FileFinder::path_of_filesystem(uint64_t device) const {
  for (const Mount& mount : mounts_) {
    if (mount.device == device) return mount.path;
  }
  return fail(Code::kUnsupported, "",
              fmt::format("file system {}:{}, which is in another mount namespace", major(device), minor(device)));
}

namespace {

Result<store::Inotify> parse_inotify(std::string_view fdinfo, const FileFinder& finder) {
  store::Inotify out;
  CKPT_TRY(for_each_line(fdinfo, "inotify ", [&](std::string_view line) -> Result<void> {
    Fields fields = fields_of(line);
    store::InotifyWatch watch;
    FileFinder::Handle handle;
    if (!take(fields, "wd", watch.wd) || !take(fields, "mask", watch.mask) || !take_handle(fields, handle))
      return malformed(line);
    auto place = finder.find(handle);
    if (!place) return Error(place.error().code, "", "inotify watches " + place.error().message);
    watch.path = std::move(place->path), watch.device = place->device, watch.inode = place->inode;
    out.watches.push_back(std::move(watch));
    return {};
  }));
  std::sort(out.watches.begin(), out.watches.end(), [](const auto& a, const auto& b) { return a.wd < b.wd; });
  return out;
}

Result<store::FanotifyMark> parse_mark(std::string_view line, const FileFinder& finder) {
  Fields fields = fields_of(line);
  store::FanotifyMark mark;
  FileFinder::Handle handle;
  uint64_t device = 0;
  int mount = 0;
  if (!take(fields, "mflags", mark.flags) || !take(fields, "mask", mark.mask) ||
      !take(fields, "ignored_mask", mark.ignored_mask))
    return malformed(line);
  Result<std::string> path = malformed(line);
  if (take(fields, "mnt_id", mount)) {
    mark.scope = store::FanotifyScope::kMount;
    path = finder.path_of_mount(mount);
  } else if (fields.count("ino") != 0) {
    if (!take_handle(fields, handle)) return malformed(line);
    auto place = finder.find(handle);
    if (place)
      mark.device = place->device, mark.inode = place->inode, path = std::move(place->path);
    else
      path = std::move(place.error());
  } else if (take(fields, "sdev", device)) {
    mark.scope = store::FanotifyScope::kFilesystem;
    mark.device = device_of(device);
    path = finder.path_of_filesystem(mark.device);
  }
  if (!path) return Error(path.error().code, "", "fanotify watches " + path.error().message);
  mark.path = std::move(*path);
  return mark;
}

Result<store::Fanotify> parse_fanotify(std::string_view fdinfo, const FileFinder& finder) {
  store::Fanotify out;
  bool found = false;
  CKPT_TRY(for_each_line(fdinfo, "fanotify ", [&](std::string_view line) -> Result<void> {
    Fields fields = fields_of(line);
    if (fields.count("flags") != 0) {
      found = take(fields, "flags", out.flags) && take(fields, "event-flags", out.event_flags);
      return found ? Result<void>() : Result<void>(malformed(line));
    }
    CKPT_TRY_ASSIGN(store::FanotifyMark mark, parse_mark(line, finder));
    out.marks.push_back(std::move(mark));
    return {};
  }));
  if (!found) return malformed("fanotify");
  std::reverse(out.marks.begin(), out.marks.end());  // the kernel lists the last one first
  return out;
}

}  // namespace

Result<store::Inotify> describe_inotify(int fd, std::string_view fdinfo, const FileFinder& finder) {
  CKPT_TRY_ASSIGN(store::Inotify out, with_own_folder([&] { return parse_inotify(fdinfo, finder); }));
  CKPT_TRY_ASSIGN(int waiting, waiting_bytes(fd, "inotify"));
  out.overflow = waiting != 0;
  return out;
}

Result<store::Fanotify> describe_fanotify(int fd, std::string_view fdinfo, const FileFinder& finder) {
  CKPT_TRY_ASSIGN(store::Fanotify out, with_own_folder([&] { return parse_fanotify(fdinfo, finder); }));
  if ((out.flags & (FAN_CLASS_CONTENT | FAN_CLASS_PRE_CONTENT)) != 0)
    return fail(Code::kUnsupported, "", "fanotify that decides about accesses, which is not supported");
  CKPT_TRY_ASSIGN(int waiting, waiting_bytes(fd, "fanotify"));
  if (waiting != 0)
    return fail(Code::kBusy, "", "fanotify with events that the process has not read yet");
  return out;
}

}  // namespace ckpt::capture
