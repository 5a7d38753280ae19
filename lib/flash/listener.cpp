#include "lib/flash/listener.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

namespace ckpt::flash {

namespace {

constexpr std::string_view kPrefix = "flash-", kSuffix = ".sock.lock", kLock = ".lock";

/// Until somebody listens there.
std::string begun(const std::string& socket) { return socket + ".new"; }

bool is_lock_name(std::string_view name) { return name.starts_with(kPrefix) && name.ends_with(kSuffix); }

/// The lock on the file that has the name now: one that lost it meanwhile is nobody's. Empty: it is taken, or `errno`.
UniqueFd lock_named(int folder, const std::string& name, int flags) {
  for (;;) {
    UniqueFd out(::openat(folder, name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | flags, 0600));
    struct stat held{}, named{};
    if (!out || ::flock(out.get(), LOCK_EX | LOCK_NB) != 0) return UniqueFd();
    if (::fstat(out.get(), &held) != 0) return UniqueFd();
    if (::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev)
      return out;
    if ((flags & O_CREAT) == 0) {
      errno = ENOENT;
      return UniqueFd();
    }
  }
}

/// Those of agents that were killed: a lock that can be had is the lock of nobody.
void remove_leftovers(int folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
                                                ::closedir);
  if (!dir) return;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (!is_lock_name(name)) continue;
    const UniqueFd lock = lock_named(folder, name, 0);
    if (!lock) continue;
    const std::string socket = name.substr(0, name.size() - kLock.size());
    for (const std::string& left : {socket, begun(socket)}) ::unlinkat(folder, left.c_str(), 0);
    ::unlinkat(folder, name.c_str(), 0);
  }
}

}  // namespace

Listener::~Listener() {
  if (bound_) ::unlinkat(place_.folder.get(), place_.name.c_str(), 0);
  if (lock_) ::unlinkat(place_.folder.get(), lock_name().c_str(), 0);
}

Result<void> Listener::check_lock() {
  struct stat st {};
  if (::fstat(lock_.get(), &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0) return {};
  lock_.reset();
  return fail(Code::kUsage, place_.shown + ".lock", "is there, and is no lock of an agent");
}

Result<void> Listener::take_lock(const std::string& directory) {
  // Another agent that begins may look for a moment whether this lock is a leftover.
  for (int attempt = 0; attempt < 5; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    lock_ = lock_named(place_.folder.get(), lock_name(), O_CREAT);
    if (lock_) return check_lock();
    if (errno != EWOULDBLOCK) return sys_error(place_.shown, "cannot make its lock");
  }
  return fail(Code::kBusy, directory, "has an agent already");
}

Result<void> Listener::remove_old_socket() const {
  for (const std::string& name : {begun(place_.name), place_.name}) {
    struct stat st {};
    if (::fstatat(place_.folder.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISSOCK(st.st_mode)) return fail(Code::kUsage, place_.shown, "is there, and is no socket");
    ::unlinkat(place_.folder.get(), name.c_str(), 0);
  }
  return {};
}

Result<void> Listener::open(const std::string& directory, const std::string& socket) {
  CKPT_TRY_ASSIGN(place_, find_socket(directory, socket));
  CKPT_TRY(take_lock(directory));
  if (socket.empty()) remove_leftovers(place_.folder.get());
  CKPT_TRY(remove_old_socket());
  socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = begun(place_.address()), name = begun(place_.name);
  if (path.size() >= sizeof address.sun_path) return fail(Code::kUsage, place_.shown, "is too long a name");
  path.copy(address.sun_path, path.size());
  if (!socket_ || ::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return sys_error(place_.shown, "cannot make the socket");
  const int folder = place_.folder.get();
  bound_ = ::fchmodat(folder, name.c_str(), 0600, 0) == 0 && ::listen(socket_.get(), 128) == 0 &&
           ::renameat(folder, name.c_str(), folder, place_.name.c_str()) == 0;
  if (bound_) return {};
  Error failed = sys_error(place_.shown, "cannot listen");
  ::unlinkat(folder, name.c_str(), 0);
  return failed;
}

}  // namespace ckpt::flash
