#include "plugins/interposer/agent_socket.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ckpt::interposer {

namespace {

constexpr int kHighFd = 700;

char g_file[sizeof(sockaddr_un::sun_path)];  ///< of the newest address
std::atomic<pid_t> g_file_owner{0};          ///< 0: there is none

/// "agent-PID" in CKPT_RUN_DIR, which must be our user's own and closed to others; else abstract. 0: no address.
socklen_t make_address(sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  if (const char* folder = std::getenv("CKPT_RUN_DIR"); folder != nullptr && *folder != 0) {
    struct stat about;
    if (::lstat(folder, &about) != 0 || !S_ISDIR(about.st_mode) || about.st_uid != geteuid() ||
        (about.st_mode & 077) != 0)
      return 0;
    const int length = std::snprintf(address->sun_path, sizeof address->sun_path, "%s/agent-%d", folder, getpid());
    if (length <= 0 || static_cast<size_t>(length) >= sizeof address->sun_path) return 0;
    ::unlink(address->sun_path);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length + 1);
  }
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) return 0;
  const int length = std::snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "%s%d-%016llx",
                                   agent::kAddressPrefix, getpid(), static_cast<unsigned long long>(random));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

bool trusted(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == 0 || peer.uid == geteuid());
}

}  // namespace

void OwnFd::set(int fd) {
  close();
  const int high = fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, kHighFd);
  if (high >= 0) {
    ::close(fd);
    fd = high;
  }
  struct stat about{};
  if (fd >= 0) ::fstat(fd, &about);
  fd_ = fd;
  device_ = about.st_dev;
  inode_ = about.st_ino;
}

void OwnFd::close() {
  struct stat about;
  if (fd_ >= 0 && ::fstat(fd_, &about) == 0 && about.st_dev == device_ && about.st_ino == inode_) ::close(fd_);
  fd_ = -1;
}

bool listen_for_clients(OwnFd* listener) {
  sockaddr_un address;
  const socklen_t size = make_address(&address);
  const int fd = size == 0 ? -1 : ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 4) != 0) {
    ::close(fd);
    return false;
  }
  listener->set(fd);
  if (address.sun_path[0] != 0) {
    std::memcpy(g_file, address.sun_path, sizeof g_file);
    g_file_owner.store(getpid());
  }
  return true;
}

void remove_socket_file() {
  pid_t self = getpid();
  if (g_file_owner.compare_exchange_strong(self, 0)) ::unlink(g_file);
}

Accepted accept_client(const OwnFd& listener, OwnFd* client) {
  const int fd = ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    const bool passing = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EMFILE ||
                         errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
    return passing ? Accepted::kNobody : Accepted::kBroken;
  }
  if (!trusted(fd)) {
    ::close(fd);
    return Accepted::kNobody;
  }
  client->set(fd);
  return Accepted::kClient;
}

bool receive(int socket, agent::Received* in) {
  ssize_t got;
  do {
    got = agent::receive_message(socket, in);
  } while (got < 0 && errno == EINTR);
  if (!in->whole) in->message.magic = 0;  // malformed
  if (got > 0) return true;
  if (in->fd >= 0) ::close(in->fd);
  return false;
}

bool send(int socket, const agent::Message& message, const std::string& payload, int fd) {
  ssize_t sent;
  do {
    sent = agent::send_message(socket, message, payload, fd);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof message + payload.size());
}

uint64_t start_time() {
  char text[1024];
  const int fd = ::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  const ssize_t got = fd < 0 ? -1 : ::read(fd, text, sizeof text - 1);
  if (fd >= 0) ::close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  const char* at = std::strrchr(text, ')');  // the name may hold anything
  for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

}  // namespace ckpt::interposer
