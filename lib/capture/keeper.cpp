#include "lib/capture/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "lib/base/fd_message.h"

namespace ckpt::capture {

namespace {

// Messages are one datagram each (SOCK_SEQPACKET).
struct Handover {
  ProcessKey key;
  char path[PATH_MAX] = {};
  char id[64] = {};
};
enum class Request : char { kAsk = 'a', kTake = 't' };

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};

Address address_of(const ProcessKey& key, const char* what = "keeper") {
  Address out;
  out.name.sun_family = AF_UNIX;
  int n = std::snprintf(out.name.sun_path + 1, sizeof out.name.sun_path - 1, "ckpt-%s/%d/%llu", what, key.pid,
                        static_cast<unsigned long long>(key.start_time));
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
  return out;
}

bool send_state(int socket, const Handover& state, std::span<const int> fds) {
  return send_with_fds(socket, std::as_bytes(std::span(&state, 1)), fds) == static_cast<ssize_t>(sizeof state);
}
/// True: with so many descriptors.
bool receive_state(int socket, Handover& state, std::vector<UniqueFd>& fds, size_t count) {
  return receive_with_fds(socket, std::as_writable_bytes(std::span(&state, 1)), fds) == static_cast<ssize_t>(sizeof state) && fds.size() == count;
}

bool trusted_peer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == 0 || peer.uid == ::geteuid();
}

UniqueFd seqpacket_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

/// Answers one client. True: the tracking was taken, and is no longer here: whoever closes a userfaultfd last takes all its
/// protection back, 30 ms a GiB under the target's memory lock, and must not do that while ckpt has the target stopped.
bool serve(int listener, const Handover& state, UniqueFd& userfault) {
  UniqueFd client(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!client || !trusted_peer(client.get())) return false;
  timeval patience{1, 0};
  (void)::setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Request request{};
  if (::recv(client.get(), &request, sizeof request, 0) != sizeof request) return false;
  bool take = request == Request::kTake;
  const int fd = userfault.get();
  if (!send_state(client.get(), state, std::span(&fd, take ? 1 : 0)) || !take) return false;
  userfault.reset();
  return true;
}

/// The keeper's whole life. Never returns.
[[noreturn]] void keep(int channel) {
  ::prctl(PR_SET_NAME, "ckpt-keeper");
  ::setsid();
  // Nothing of ckpt's surroundings stays open here: no terminal, no pipe that somebody waits to see closed.
  ::dup2(channel, 0);
  ::syscall(SYS_close_range, 1u, ~0u, 0u);
  if (::chdir("/") != 0) ::_exit(1);
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  while (null >= 0 && null < 2) null = ::dup(null);
  signal(SIGHUP, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_DFL);
  Handover state;
  std::vector<UniqueFd> fds;
  if (!receive_state(0, state, fds, 2)) ::_exit(0);
  UniqueFd listener = seqpacket_socket();
  Address address = address_of(state.key);
  bool ready = listener && ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address.name), address.size) == 0 &&
               ::listen(listener.get(), 4) == 0;
  char answer = ready ? 'y' : 'n';
  bool told = ::send(0, &answer, 1, MSG_NOSIGNAL) == 1;
  ::close(0);
  for (bool going = ready && told; going;) {
    pollfd events[2] = {{fds[0].get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
    if (::poll(events, 2, -1) < 0) continue;
    if (events[0].revents != 0) break;  // the target has ended
    if (events[1].revents != 0) going = !serve(listener.get(), state, fds[1]);
  }
  ::_exit(0);
}

std::optional<Tracked> ask(const ProcessKey& key, Request request) {
  UniqueFd socket = seqpacket_socket();
  Address address = address_of(key);
  if (!socket || ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address.name), address.size) != 0) return std::nullopt;
  if (!trusted_peer(socket.get())) return std::nullopt;
  timeval patience{2, 0};
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::send(socket.get(), &request, sizeof request, MSG_NOSIGNAL) != sizeof request) return std::nullopt;
  Handover state;
  Tracked out;
  std::vector<UniqueFd> fds;
  if (!receive_state(socket.get(), state, fds, request == Request::kTake ? 1 : 0)) return std::nullopt;
  if (!fds.empty()) out.userfault = std::move(fds.front());
  char end;
  if (request == Request::kTake) (void)!::recv(socket.get(), &end, 1, 0);  // until the keeper has closed its own
  state.path[sizeof state.path - 1] = 0, state.id[sizeof state.id - 1] = 0;
  out.image = {state.path, state.id};
  return out;
}

}  // namespace

Result<CaptureLock> CaptureLock::take(const ProcessKey& key) {
  UniqueFd socket = seqpacket_socket();
  Address address = address_of(key, "capture");
  // A keeper that had just been forked when its ckpt was killed has the lock, as all descriptors, until it gets to close them.
  constexpr int kTries = 60;
  constexpr useconds_t kPause = 5'000;
  for (int i = 0; socket && i < kTries; ++i) {
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address.name), address.size) == 0) return CaptureLock(std::move(socket));
    if (errno != EADDRINUSE) break;
    ::usleep(kPause);
  }
  if (errno == EADDRINUSE) return fail(Code::kBusy, "process " + std::to_string(key.pid), "is being captured by another ckpt");
  return sys_error("process " + std::to_string(key.pid), "cannot be locked against other captures");
}

Result<Keeper> Keeper::spawn() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return sys_error("keeper", "cannot make its channel");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  // Twice, so that the keeper is nobody's child here: ckpt's own end must not wait for it.
  pid_t middle = ::fork();
  if (middle < 0) return sys_error("keeper", "cannot start it");
  if (middle == 0) {
    pid_t keeper = ::fork();
    if (keeper != 0) ::_exit(keeper < 0 ? 1 : 0);
    ::close(ours.get());
    keep(theirs.get());
  }
  int status = 0;
  while (::waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return fail(Code::kNoRoom, "keeper", "cannot start it");
  return Keeper(std::move(ours));
}

Result<void> Keeper::hand_over(const ProcessKey& key, int pidfd, int userfault, const TrackedImage& image) {
  Handover state;
  state.key = key;
  std::string path = image.path.string();
  if (path.size() >= sizeof state.path || image.id.size() >= sizeof state.id) return fail(Code::kIo, path, "path too long");
  std::memcpy(state.path, path.c_str(), path.size() + 1);
  std::memcpy(state.id, image.id.c_str(), image.id.size() + 1);
  int fds[2] = {pidfd, userfault};
  char answer = 'n';
  if (!send_state(channel_.get(), state, fds) || ::recv(channel_.get(), &answer, 1, 0) != 1 || answer != 'y') {
    return fail(Code::kIo, "keeper", "cannot keep the write tracking");
  }
  return {};
}

std::optional<Tracked> take_over_tracking(const ProcessKey& key) { return ask(key, Request::kTake); }

std::optional<TrackedImage> tracked_image(const ProcessKey& key) {
  auto answer = ask(key, Request::kAsk);
  if (!answer) return std::nullopt;
  return answer->image;
}

}  // namespace ckpt::capture
