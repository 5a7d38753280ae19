#include "cli/guard.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "cli/inherited_signals.h"
#include "lib/base/result.h"
#include "lib/base/signals.h"

namespace ckpt::cli {

namespace {

int end_of(pid_t worker, int status) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  fmt::print(stderr, "ckpt: its worker {} was ended by signal {}; the kernel has let the target go\n", worker, signal);
  if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) return exit_code(Code::kInterrupted);
  if (signal != SIGKILL) return exit_code(Code::kBug);
  fmt::print(stderr, "hint: somebody killed it, or the kernel did, for want of memory (dmesg says so)\n");
  return exit_code(Code::kNoRoom);
}

}  // namespace

int run_guarded(const std::function<int()>& work, const Cancel& cancel) {
  std::fflush(nullptr);
  const pid_t front = ::getpid();
  // Blocked, and taken one by one below: none is lost between the fork and the wait.
  sigset_t watched, old;
  sigemptyset(&watched);
  for (int sig : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) {
    if (!is_ignored(sig)) sigaddset(&watched, sig);
  }
  sigprocmask(SIG_BLOCK, &watched, &old);
  pid_t worker = ::fork();
  if (worker < 0) {
    sigprocmask(SIG_SETMASK, &old, nullptr);
    return work();
  }
  if (worker == 0) {
    ::setsid();
    obey_sigterm();
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != front) ::raise(SIGTERM);
    sigprocmask(SIG_SETMASK, &old, nullptr);
    int code = work();
    std::fflush(nullptr);
    ::_exit(code);
  }
  if (cancel.requested()) ::kill(worker, SIGTERM);
  for (;;) {
    int status = 0;
    pid_t got = ::waitpid(worker, &status, WNOHANG);
    if (got == worker) {
      sigprocmask(SIG_SETMASK, &old, nullptr);
      return end_of(worker, status);
    }
    int sig = sigwaitinfo(&watched, nullptr);
    if (sig == SIGUSR1) ::kill(worker, SIGUSR1);
    if (sig == SIGINT || sig == SIGTERM || sig == SIGHUP) ::kill(worker, SIGTERM);
  }
}

}  // namespace ckpt::cli
