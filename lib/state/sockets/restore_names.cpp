#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <linux/un.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "lib/state/files/tree_root.h"
#include "lib/state/files/without_links.h"
#include "lib/state/sockets/restore_internal.h"

namespace ckpt::restore {

namespace fs = std::filesystem;

namespace {

Result<void> bind_here(int fd, const SocketName& name) {
  if (::bind(fd, raw_address(name), static_cast<socklen_t>(name.size())) == 0) return {};
  Error error = sys_error(name_text(name), "cannot bind a socket to this name");
  if (error.sys_errno == EADDRINUSE) error.code = Code::kBusy;
  return error;
}

/// Makes the folders that the path needs below the current root, "." and ".." included.
void make_parents(std::string path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    path[at] = 0;
    (void)::mkdir(path.c_str(), 0700);
    path[at] = '/';
  }
}

/// The folder from which `name`, as the program wrote it, leads to `path`. Nothing: from none.
std::string folder_for(const std::string& name, const std::string& path) {
  if (name[0] == '/') return name == path ? "/" : "";
  std::string end = "/" + name;
  if (path.size() <= end.size() || path.compare(path.size() - end.size(), end.size(), end) != 0)
    return path == end ? "/" : "";
  return path.substr(0, path.size() - end.size());
}

/// Whether nobody but root and ckpt's own user can change where a folder's path leads, and what lies in it.
bool is_beyond_others(const std::string& folder) {
  for (size_t at = 0; at != std::string::npos; at = folder.find('/', at + 1)) {
    struct stat st {};
    const std::string part = at == 0 ? "/" : folder.substr(0, at);
    if (!state::stat_in_tree(part, st, false) || !S_ISDIR(st.st_mode) || (st.st_uid != 0 && st.st_uid != ::geteuid()))
      return false;
    if ((st.st_mode & 022) != 0 && (st.st_mode & S_ISVTX) == 0) return false;
  }
  struct stat st {};
  return state::stat_in_tree(folder, st, false) && S_ISDIR(st.st_mode) &&
         (st.st_uid == 0 || st.st_uid == ::geteuid()) && ((st.st_mode & 022) == 0 || (st.st_mode & S_ISVTX) != 0);
}

}  // namespace

UnixNames::~UnixNames() {
  std::error_code ignored;
  for (const std::string& folder : folders_) fs::remove_all(folder, ignored);
}

Result<void> UnixNames::bind_own(int fd, const store::Socket& socket) {
  if (is_abstract(socket.name)) return bind_here(fd, socket.name);
  if (socket.file.deleted || socket.file.path.empty()) return bind_name(fd, socket.name);
  return bind_file(fd, socket);
}

Result<std::string> UnixNames::scratch_folder() {
  std::string pattern = (fs::temp_directory_path() / "ckpt-names-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) return sys_error(pattern, "cannot make a folder");
  folders_.push_back(pattern);
  return pattern;
}

Result<void> UnixNames::bind_name(int fd, const SocketName& name) {
  if (is_abstract(name)) return bind_here(fd, name);
  CKPT_TRY_ASSIGN(std::string folder, scratch_folder());
  std::string path = unix_name(name);
  CKPT_TRY_ASSIGN(CallResult result, run_as({}, [&] {
                    if (::chroot(folder.c_str()) != 0 || ::chdir("/") != 0) return -errno;
                    make_parents(path);
                    return ::bind(fd, raw_address(name), static_cast<socklen_t>(name.size())) == 0 ? 0 : -errno;
                  }));
  if (result.value < 0) return sys_error(-result.value, path, "cannot bind a socket to this name, whose file is gone");
  return {};
}

/// Where the file of a socket lies, and with whose rights it is handled.
struct UnixNames::Place {
  const std::string& path;
  UniqueFd folder;
  const char* leaf;
  Rights owner;
  bool beyond_others;

  static Result<Place> find(const std::string& path, Rights owner) {
    const size_t slash = path.rfind('/');
    const std::string folder = path.substr(0, std::max<size_t>(slash, 1));
    const int fd = open_without_links(folder.c_str(), O_PATH | O_DIRECTORY);
    if (fd == -ELOOP)
      return fail(Code::kMismatch, path, "the folder of a unix socket is, or lies behind, a symbolic link now");
    if (fd < 0) return sys_error(-fd, path, "cannot open the folder of a unix socket");
    return Place{path, UniqueFd(fd), path.c_str() + slash + 1, std::move(owner), is_beyond_others(folder)};
  }
  /// With the owner's rights; with ckpt's where they do not suffice and nobody else can turn them against another file.
  Result<int> run(const std::function<int()>& call) const {
    CKPT_TRY_ASSIGN(int result, run_with(owner, call));
    if ((result != -EACCES && result != -EPERM) || !beyond_others) return result;
    CKPT_TRY_ASSIGN(CallResult own, run_as({}, [&] { return state::enter_tree_root() ? call() : -errno; }));
    return own.value;
  }
  /// The file of that name itself, a link not followed.
  bool stat(struct stat& st) const { return ::fstatat(folder.get(), leaf, &st, AT_SYMLINK_NOFOLLOW) == 0; }
};

Result<void> UnixNames::clear_place(const Place& place) {
  struct stat st {};
  if (!place.stat(st)) return errno == ENOENT ? Result<void>() : sys_error(place.path, "cannot look at it");
  if (!S_ISSOCK(st.st_mode))
    return fail(Code::kBusy, place.path, "a unix socket was bound here, and now there is something else");
  CKPT_TRY_ASSIGN(auto live, proc::read_unix_sockets());
  for (const auto& [inode, info] : live) {
    if (info.file_inode == st.st_ino && info.file_device == st.st_dev)
      return fail(Code::kBusy, place.path, "a living process has a unix socket bound here");
  }
  CKPT_TRY_ASSIGN(int result,
                  place.run([&] { return ::unlinkat(place.folder.get(), place.leaf, 0) == 0 ? 0 : -errno; }));
  if (result < 0) return sys_error(-result, place.path, "cannot remove the socket file that is left over");
  return {};
}

Result<void> UnixNames::bind_file(int fd, const store::Socket& socket) {
  const std::string& path = socket.file.path;
  std::string name = unix_name(socket.name), folder = folder_for(name, path);
  CKPT_TRY_ASSIGN(Place place, Place::find(path, work_.rights_of(socket.file.uid, socket.file.gid)));
  CKPT_TRY(clear_place(place));
  bool moved = folder.empty();
  if (moved && name[0] != '/')
    return fail(Code::kUnsupported, path,
                "the file of a unix socket was moved here, and its name " + name + " is relative");
  // A file that was renamed after bind is bound under its first name and renamed again.
  struct stat taken {};
  if (moved && state::stat_in_tree(name, taken))
    return fail(Code::kBusy, name, "a unix socket was bound here, and now there is something else");
  // The file gets its mode from the socket.
  if (::fchmod(fd, socket.file.mode) != 0) return sys_error(path, "cannot choose the mode of the socket file");
  CKPT_TRY_ASSIGN(int result, place.run([&] {
                    ::umask(0);
                    if (::chdir(moved ? "/" : folder.c_str()) != 0) return -errno;
                    if (::bind(fd, raw_address(socket.name), static_cast<socklen_t>(socket.name.size())) != 0)
                      return -errno;
                    return moved && ::renameat(AT_FDCWD, name.c_str(), place.folder.get(), place.leaf) != 0 ? -errno
                                                                                                            : 0;
                  }));
  if (result < 0) return sys_error(-result, path, "cannot bind a unix socket here");
  if (::fchmod(fd, socket.mode) != 0) return sys_error(path, "cannot give the socket its mode");
  return settle(fd, socket, place);
}

/// What bind made is in its place, and its owner's.
Result<void> UnixNames::settle(int fd, const store::Socket& socket, const Place& place) {
  UniqueFd file(::ioctl(fd, SIOCUNIXFILE));
  struct stat made {}, there {};
  if (!file || ::fstat(file.get(), &made) != 0) return sys_error(place.path, "cannot find the file of a unix socket");
  if (!place.stat(there) || there.st_ino != made.st_ino || there.st_dev != made.st_dev)
    return fail(Code::kBusy, place.path, "was replaced while a unix socket was bound here");
  if (made.st_uid == socket.file.uid && made.st_gid == socket.file.gid) return {};
  auto give = [&] {
    return ::fchownat(place.folder.get(), place.leaf, socket.file.uid, socket.file.gid, AT_SYMLINK_NOFOLLOW) == 0
               ? 0
               : -errno;
  };
  CKPT_TRY_ASSIGN(int result, place.run(give));
  if (result < 0) return sys_error(-result, place.path, "cannot give the socket file its owner");
  return {};
}

Result<UniqueFd> reach_unix(int target, SocketName& name) {
  if (target < 0 || is_abstract(name)) return UniqueFd();
  UniqueFd file(::ioctl(target, SIOCUNIXFILE));
  if (!file) return sys_error(name_text(name), "cannot reach a unix socket that was made again");
  sockaddr_un link{};
  link.sun_family = AF_UNIX;
  std::string path = fmt::format("/proc/self/fd/{}", file.get());
  path.copy(link.sun_path, sizeof link.sun_path - 1);
  auto* raw = reinterpret_cast<const uint8_t*>(&link);
  name.assign(raw, raw + offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return file;
}

Result<CallResult> connect_unix(int fd, int target, SocketName name, const store::SocketCredentials& who) {
  CKPT_TRY_ASSIGN(UniqueFd file, reach_unix(target, name));
  // A full queue is an error, not something to wait for.
  int flags = ::fcntl(fd, F_GETFL);
  (void)::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  auto result = run_as(
      who, [&] { return ::connect(fd, raw_address(name), static_cast<socklen_t>(name.size())) == 0 ? 0 : -errno; });
  (void)::fcntl(fd, F_SETFL, flags);
  return result;
}

Result<int> connect_with(const Rights& rights, int fd, const SocketName& name) {
  int flags = ::fcntl(fd, F_GETFL);
  (void)::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  auto result = run_with(
      rights, [&] { return ::connect(fd, raw_address(name), static_cast<socklen_t>(name.size())) == 0 ? 0 : -errno; });
  (void)::fcntl(fd, F_SETFL, flags);
  return result;
}

}  // namespace ckpt::restore
