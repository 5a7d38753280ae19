#include "cli/guard_notice.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/inherited_signals.h"
#include "lib/base/clock.h"

namespace ckpt::cli {

namespace {
constexpr uint64_t kPause = 1'000'000;  ///< microseconds between two runs of the command
}  // namespace

GuardNotice::~GuardNotice() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::string GuardNotice::look() {
  struct stat st {};
  if (!file_.empty() && ::stat(file_.c_str(), &st) == 0) return "the notice file " + file_;
  if (command_.empty()) return "";
  int status = 0;
  if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    pid_ = 0;
    again_us_ = monotonic_us() + kPause;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "the notice command";
  }
  if (pid_ == 0 && monotonic_us() >= again_us_) start();
  return "";
}

void GuardNotice::start() {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    restore_signals();
    sigprocmask(SIG_SETMASK, &signals_, nullptr);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execl("/bin/sh", "sh", "-c", command_.c_str(), nullptr);
    ::_exit(127);
  }
  if (child > 0) {
    ::setpgid(child, child);  // whoever of both comes first: the group is what is ended
    pid_ = child;
  } else {
    again_us_ = monotonic_us() + kPause;
  }
}

}  // namespace ckpt::cli
