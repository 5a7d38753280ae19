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

#include "lib/rebuild/sockets_internal.h"

namespace ckpt::rebuild {

namespace fs = std::filesystem;

namespace {

const sockaddr* address(const SocketName& name) { return reinterpret_cast<const sockaddr*>(name.data()); }

Result<void> bind_here(int fd, const SocketName& name) {
  if (::bind(fd, address(name), static_cast<socklen_t>(name.size())) == 0) return {};
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

Result<void> own_file(const store::SocketFile& file) {
  if (::lchown(file.path.c_str(), file.uid, file.gid) != 0)
    return sys_error(file.path, "cannot give the socket file its owner");
  if (::chmod(file.path.c_str(), file.mode) != 0) return sys_error(file.path, "cannot give the socket file its mode");
  return {};
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
                    return ::bind(fd, address(name), static_cast<socklen_t>(name.size())) == 0 ? 0 : -errno;
                  }));
  if (result.value < 0) return sys_error(-result.value, path, "cannot bind a socket to this name, whose file is gone");
  return {};
}

Result<void> UnixNames::clear_place(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) return errno == ENOENT ? Result<void>() : sys_error(path, "cannot look at it");
  if (!S_ISSOCK(st.st_mode))
    return fail(Code::kBusy, path, "a unix socket was bound here, and now there is something else");
  CKPT_TRY_ASSIGN(auto live, proc::read_unix_sockets());
  for (const auto& [inode, info] : live) {
    if (info.file_inode == st.st_ino && info.file_device == st.st_dev)
      return fail(Code::kBusy, path, "a living process has a unix socket bound here");
  }
  if (::unlink(path.c_str()) != 0) return sys_error(path, "cannot remove the socket file that is left over");
  return {};
}

Result<void> UnixNames::bind_file(int fd, const store::Socket& socket) {
  const std::string& path = socket.file.path;
  std::string name = unix_name(socket.name), folder = folder_for(name, path);
  CKPT_TRY(clear_place(path));
  bool moved = folder.empty();
  if (moved && name[0] != '/')
    return fail(Code::kUnsupported, path,
                "the file of a unix socket was moved here, and its name " + name + " is relative");
  // A file that was renamed after bind is bound under its first name and renamed again.
  if (moved && ::access(name.c_str(), F_OK) == 0)
    return fail(Code::kBusy, name, "a unix socket was bound here, and now there is something else");
  CKPT_TRY_ASSIGN(CallResult result, run_as({}, [&] {
                    ::umask(0777);  // until it has its owner
                    if (::chdir(moved ? "/" : folder.c_str()) != 0) return -errno;
                    if (::bind(fd, address(socket.name), static_cast<socklen_t>(socket.name.size())) != 0)
                      return -errno;
                    return moved && ::rename(name.c_str(), path.c_str()) != 0 ? -errno : 0;
                  }));
  if (result.value < 0) return sys_error(-result.value, path, "cannot bind a unix socket here");
  return own_file(socket.file);
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
  auto result =
      run_as(who, [&] { return ::connect(fd, address(name), static_cast<socklen_t>(name.size())) == 0 ? 0 : -errno; });
  (void)::fcntl(fd, F_SETFL, flags);
  return result;
}

}  // namespace ckpt::rebuild
