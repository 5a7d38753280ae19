#include "lib/memory/tracking_daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/fd_message.h"
#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/run_folder.h"
#include "lib/base/threads.h"
#include "lib/proc/fork_far_away.h"
#include "lib/proc/own_helpers.h"
#include "lib/state/namespaces/entered.h"

namespace ckpt::capture {

namespace {

// Messages are one datagram each (SOCK_SEQPACKET).
struct Handover {
  ProcessKey key;
  char path[PATH_MAX] = {};
  char id[64] = {};
};
enum class Request : char { kAsk = 'a', kTake = 't' };

/// The place of a socket in the run folder, whose name no other user can take first. Its path leads through the
/// descriptor: that of $XDG_RUNTIME_DIR may be longer than an address.
struct SocketPlace {
  UniqueFd folder;
  std::string name;
  sockaddr_un address{};

  int connect_to(int socket) const {
    return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  int bind_to(int socket) const { return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address); }
  void remove() const { ::unlinkat(folder.get(), name.c_str(), 0); }
};

/// Numbers mean what they do in one pid namespace.
std::string name_prefix() {
  struct stat st {};
  (void)::stat("/proc/self/ns/pid", &st);
  return "tracking-" + std::to_string(st.st_ino) + "-";
}

Result<SocketPlace> place_of(const ProcessKey& key) {
  SocketPlace out;
  CKPT_TRY_ASSIGN(out.folder, open_run_folder());
  out.name = name_prefix() + std::to_string(key.pid) + "-" + std::to_string(key.start_time);
  out.address.sun_family = AF_UNIX;
  std::snprintf(out.address.sun_path, sizeof out.address.sun_path, "/proc/self/fd/%d/%s", out.folder.get(),
                out.name.c_str());
  return out;
}

/// The sockets of daemons that were killed, and whose processes have ended.
void sweep(const SocketPlace& place) {
  const std::string prefix = name_prefix();
  UniqueFd folder(::openat(place.folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR* list = folder ? ::fdopendir(folder.get()) : nullptr;
  if (list == nullptr) return;
  (void)folder.release();
  while (const dirent* entry = ::readdir(list)) {
    const std::string name = entry->d_name;
    if (name.rfind(prefix, 0) != 0) continue;
    const int pid = std::atoi(name.c_str() + prefix.size());
    if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) ::unlinkat(place.folder.get(), name.c_str(), 0);
  }
  ::closedir(list);
}

bool send_state(int socket, const Handover& state, std::span<const int> fds) {
  return send_with_fds(socket, std::as_bytes(std::span(&state, 1)), fds) == static_cast<ssize_t>(sizeof state);
}
/// True: with so many descriptors.
bool receive_state(int socket, Handover& state, std::vector<UniqueFd>& fds, size_t count) {
  return receive_with_fds(socket, std::as_writable_bytes(std::span(&state, 1)), fds) ==
             static_cast<ssize_t>(sizeof state) &&
         fds.size() == count;
}

bool trusted_peer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == 0 || peer.uid == ::geteuid();
}

UniqueFd seqpacket_socket() { return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

/// Answers one client. True: the tracking was taken, and is no longer here: whoever closes a userfaultfd last takes all
/// its protection back, 30 ms a GiB under the target's memory lock, and must not do that while ckpt has the target
/// stopped.
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

/// False: there is another daemon of the process. What one that was killed has left is replaced.
bool take_place(const SocketPlace& place, int listener) {
  if (place.bind_to(listener) == 0) return true;
  if (errno != EADDRINUSE || place.connect_to(seqpacket_socket().get()) == 0 || errno != ECONNREFUSED) return false;
  place.remove();
  return place.bind_to(listener) == 0;
}

volatile sig_atomic_t g_shall_move = 0;

/// A restore needs the number that the daemon has: a copy goes on under another one. Where it cannot, the daemon stays.
void move_aside() {
  auto ends = make_pipe();
  if (!ends) return;
  auto& [ready, end] = *ends;
  const bool has_parent = state::stays_as_sibling();
  const pid_t copy = has_parent ? proc::fork_far_away(CLONE_PARENT, 0) : proc::fork_far_away();
  if (copy < 0) return;
  if (copy == 0) {
    ::setsid();  // the number of a session is not free while it has members
    return;
  }
  end.reset();
  char byte;
  (void)!::read(ready.get(), &byte, 1);
  ::_exit(0);
}

/// The daemon's whole life. Never returns.
[[noreturn]] void keep(int channel) {
  ::signal(proc::kMoveSignal, [](int) { g_shall_move = 1; });
  ::setsid();
  // Nothing that ckpt has inherited stays open here: no terminal, no pipe that somebody waits to see closed.
  ::dup2(channel, 0);
  io::close_descriptors(1);
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
  auto place = place_of(state.key);
  if (place) sweep(*place);
  const bool ready = listener && place && take_place(*place, listener.get()) && ::listen(listener.get(), 4) == 0;
  char answer = ready ? 'y' : 'n';
  bool told = ::send(0, &answer, 1, MSG_NOSIGNAL) == 1;
  ::close(0);
  sigset_t move, others;
  sigemptyset(&move);
  sigaddset(&move, proc::kMoveSignal);
  sigprocmask(SIG_BLOCK, &move, &others);  // let through while it waits alone
  for (bool going = ready && told; going;) {
    if (std::exchange(g_shall_move, 0) != 0) move_aside();
    pollfd events[2] = {{fds[0].get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
    if (::ppoll(events, 2, nullptr, &others) < 0) continue;
    if (events[0].revents != 0) break;  // the target has ended
    if (events[1].revents != 0) going = !serve(listener.get(), state, fds[1]);
  }
  if (ready) place->remove();
  ::_exit(0);
}

std::optional<Tracked> ask(const ProcessKey& key, Request request) {
  UniqueFd socket = seqpacket_socket();
  auto place = place_of(key);
  if (!socket || !place || place->connect_to(socket.get()) != 0) return std::nullopt;
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
  if (request == Request::kTake) (void)!::recv(socket.get(), &end, 1, 0);  // until the daemon has closed its own
  state.path[sizeof state.path - 1] = 0, state.id[sizeof state.id - 1] = 0;
  out.image = {state.path, state.id};
  return out;
}

}  // namespace

Result<CaptureLock> CaptureLock::take(const ProcessKey& key) {
  // Only who owns the process, or is root, may open it, and nothing else here does. A record lock is no child's: a
  // daemon that was forked while it was held does not prolong it.
  const std::string path = "/proc/" + std::to_string(key.pid) + "/clear_refs";
  CKPT_TRY_ASSIGN(UniqueFd file, io::open_file(path, O_WRONLY));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  // A ckpt whose front process was killed takes a moment to let go of the target.
  constexpr int kTries = 60;
  constexpr useconds_t kPause = 5'000;
  for (int i = 0; i < kTries; ++i) {
    if (::fcntl(file.get(), F_SETLK, &lock) == 0) return CaptureLock(std::move(file));
    if (errno != EACCES && errno != EAGAIN) break;
    ::usleep(kPause);
  }
  if (errno == EACCES || errno == EAGAIN)
    return fail(Code::kBusy, "process " + std::to_string(key.pid), "is being captured by another ckpt");
  return sys_error("process " + std::to_string(key.pid), "cannot be locked against other captures");
}

Result<TrackingDaemon> TrackingDaemon::spawn() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return sys_error("tracking daemon", "cannot make its channel");
  UniqueFd ours(ends[0]), theirs(ends[1]);
  if (state::stays_as_sibling()) {
    // In the pid namespace of the target nobody's child would be that of its first process, which knows nothing of it:
    // it becomes one of whoever ran this worker from outside.
    const pid_t daemon = proc::fork_far_away(CLONE_PARENT, 0);
    if (daemon < 0) return fork_error(errno, "tracking daemon", "cannot start it");
    if (daemon != 0) return TrackingDaemon(std::move(ours));
    ::prctl(PR_SET_NAME, proc::kTrackingDaemonName);
    ::close(ours.get());
    keep(theirs.get());
  }
  // Twice, so that the daemon is nobody's child here: ckpt's own end must not wait for it.
  pid_t middle = ::fork();
  if (middle < 0) return fork_error(errno, "tracking daemon", "cannot start it");
  if (middle == 0) {
    // From its first moment on it is told from the processes of a tree whose init it is handed to. It cannot move yet.
    ::signal(proc::kMoveSignal, SIG_IGN);
    ::prctl(PR_SET_NAME, proc::kTrackingDaemonName);
    pid_t daemon = proc::fork_far_away();
    if (daemon != 0) ::_exit(daemon < 0 ? 1 : 0);
    ::close(ours.get());
    keep(theirs.get());
  }
  int status = 0;
  while (::waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) return fail(Code::kNoRoom, "tracking daemon", "cannot start it");
  return TrackingDaemon(std::move(ours));
}

Result<void> TrackingDaemon::hand_over(const ProcessKey& key, int pidfd, int userfault, const TrackedImage& image) {
  Handover state;
  state.key = key;
  std::string path = image.path.string();
  if (path.size() >= sizeof state.path || image.id.size() >= sizeof state.id)
    return fail(Code::kIo, path, "path too long");
  std::memcpy(state.path, path.c_str(), path.size() + 1);
  std::memcpy(state.id, image.id.c_str(), image.id.size() + 1);
  int fds[2] = {pidfd, userfault};
  char answer = 'n';
  if (!send_state(channel_.get(), state, fds) || ::recv(channel_.get(), &answer, 1, 0) != 1 || answer != 'y') {
    return fail(Code::kIo, "tracking daemon", "cannot keep the write tracking");
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
