// Waiting for a restored process in its stead.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

#include "lib/base/signals.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/restore.h"

namespace ckpt::engine {

namespace {

constexpr int kForwardedSignals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};

/// The terminal of ckpt's session, given to the process's group for as long as it runs in the foreground.
class Terminal {
 public:
  explicit Terminal(pid_t group) : group_(group) {
    if (group == ::getpgrp()) return;
    fd_ = UniqueFd(::open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY));
    if (fd_ && ::tcgetpgrp(fd_.get()) != ::getpgrp()) fd_.reset();
    give();
  }
  ~Terminal() { take_back(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool shared() const { return static_cast<bool>(fd_); }
  void give() {
    if (fd_ && ::tcsetpgrp(fd_.get(), group_) != 0) fd_.reset();  // it is in another session
  }
  void take_back() {
    if (fd_) ::tcsetpgrp(fd_.get(), ::getpgrp());
  }

 private:
  pid_t group_;
  UniqueFd fd_;
};

/// Blocks what is passed on, and SIGTTOU: taking the terminal back from the background must not stop ckpt.
class BlockedSignals {
 public:
  BlockedSignals() {
    ::sigemptyset(&waited_);
    for (int signal : kForwardedSignals) {
      if (!is_ignored(signal)) ::sigaddset(&waited_, signal);
    }
    ::sigaddset(&waited_, SIGCHLD);
    sigset_t blocked = waited_;
    ::sigaddset(&blocked, SIGTTOU);
    ::sigprocmask(SIG_BLOCK, &blocked, &before_);
  }
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  siginfo_t next() {
    siginfo_t info{};
    while (::sigwaitinfo(&waited_, &info) < 0 && errno == EINTR) {
    }
    return info;
  }

 private:
  sigset_t waited_, before_;
};

/// The process was stopped from its terminal: ckpt stops too, so that the shell sees its job stop, and follows it on.
void follow_stop(Terminal& terminal, pid_t group) {
  terminal.take_back();
  ::raise(SIGSTOP);
  terminal.give();
  ::kill(-group, SIGCONT);
}

}  // namespace

Result<ProcessEnd> supervise(int pid, const Cancel& cancel) {
  BlockedSignals signals;
  pid_t group = ::getpgid(pid);
  bool same_group = group == ::getpgrp() || group < 0;
  Terminal terminal(same_group ? ::getpgrp() : group);
  if (cancel.requested()) ::kill(pid, SIGINT);
  for (;;) {
    int status = 0;
    pid_t got = ::waitpid(-1, &status, WNOHANG | (terminal.shared() ? WUNTRACED : 0));
    if (got > 0 && got != pid) continue;  // the lazy-pages daemon of a lazy restore
    if (got < 0 && errno != EINTR) return sys_error("process " + std::to_string(pid), "cannot be waited for");
    if (got == pid && WIFEXITED(status)) return ProcessEnd{WEXITSTATUS(status), 0};
    if (got == pid && WIFSIGNALED(status)) return ProcessEnd{0, WTERMSIG(status)};
    if (got == pid && WIFSTOPPED(status)) follow_stop(terminal, group);
    if (got == pid) continue;
    siginfo_t info = signals.next();
    // What the terminal sends goes to the whole group: a process in ours has it already.
    bool has_it = same_group && info.si_code == SI_KERNEL;
    if (info.si_signo != SIGCHLD && !has_it) ::kill(pid, info.si_signo);
  }
}

}  // namespace ckpt::engine
