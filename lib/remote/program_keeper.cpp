#include "lib/remote/program_keeper.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <mutex>

namespace ckpt::remote {

namespace {

constexpr size_t kMostGroups = 256;

/// The keeper's work. A fork of a process that has threads: nothing but system calls from here on.
class Keeper {
 public:
  [[noreturn]] static void run(int channel, int parent) {
    ::prctl(PR_SET_NAME, "ckpt-keeper");
    ::setsid();  // what ends ckpt's process group must not end this
    close_all_but(channel, parent);
    std::array<pid_t, kMostGroups> groups{};
    for (;;) {
      std::array<pollfd, 2> fds = {{{channel, POLLIN, 0}, {parent, POLLIN, 0}}};
      if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) break;
      // What was said before the end counts.
      if (fds[0].revents != 0 && take(channel, groups)) continue;
      if (fds[1].revents != 0) break;
      if ((fds[0].revents & POLLHUP) != 0) channel = -1;  // closed, and its process lives: nothing more will be said
    }
    for (const pid_t group : groups) {
      if (group > 0) ::kill(-group, SIGKILL);
    }
    ::_exit(0);
  }

 private:
  static void close_all_but(int one, int other) {
    const auto low = static_cast<unsigned>(one < other ? one : other);
    const auto high = static_cast<unsigned>(one < other ? other : one);
    if (low > 0) ::syscall(SYS_close_range, 0U, low - 1, 0);
    if (high > low + 1) ::syscall(SYS_close_range, low + 1, high - 1, 0);
    ::syscall(SYS_close_range, high + 1, ~0U, 0);
  }

  /// A group that begins, or, with a minus, one that has ended.
  static bool take(int channel, std::array<pid_t, kMostGroups>& groups) {
    pid_t word = 0;
    if (::recv(channel, &word, sizeof word, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof word)) return false;
    for (pid_t& group : groups) {
      if (group == (word > 0 ? 0 : -word)) {
        group = word > 0 ? word : 0;
        break;
      }
    }
    return true;
  }
};

struct Shared {
  std::mutex mutex;
  pid_t owner = 0;  ///< a fork of it makes its own keeper
  int channel = -1;
};

/// Its mutex is free in a fork of the process, whatever other threads were about.
Shared& shared() {
  static Shared instance;
  static const int handled = ::pthread_atfork([] { shared().mutex.lock(); }, [] { shared().mutex.unlock(); },
                                              [] { shared().mutex.unlock(); });
  (void)handled;
  return instance;
}

int start() {
  int ends[2];
  const int self = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  if (self < 0) return -1;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    ::close(self);
    return -1;
  }
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto child = static_cast<pid_t>(::syscall(SYS_fork));  // without the handlers of `shared`, who holds the mutex
  if (child == 0) Keeper::run(ends[1], self);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::close(ends[1]);
  ::close(self);
  if (child > 0) return ends[0];
  ::close(ends[0]);
  return -1;
}

void tell(pid_t word) {
  Shared& all = shared();
  std::lock_guard lock(all.mutex);
  if (all.owner != ::getpid()) {
    all.owner = ::getpid();
    all.channel = start();
  }
  if (all.channel >= 0) (void)::send(all.channel, &word, sizeof word, MSG_NOSIGNAL);
}

}  // namespace

KeptGroup::KeptGroup(pid_t group) : group_(group) { tell(group_); }
KeptGroup::~KeptGroup() { tell(-group_); }

}  // namespace ckpt::remote
