#include "lib/proc/waiting_child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "lib/base/unique_fd.h"
#include "lib/proc/procfs.h"

namespace ckpt::proc {

namespace {

[[noreturn]] void become_and_wait(const std::function<bool()>& become, const std::function<void()>& work, int told) {
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  const char done = become() ? 'y' : 'n';
  // A change of ids forgets it.
  ::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (::syscall(SYS_write, told, &done, 1) != 1) ::syscall(SYS_exit_group, 1);
  if (work) {
    work();
    ::syscall(SYS_exit_group, 0);
  }
  for (;;) ::syscall(SYS_pause);
}

/// A first child would be the init of a pid namespace that waits for one.
bool may_make_processes() {
  auto own = read_link(::getpid(), "ns/pid"), of_children = read_link(::getpid(), "ns/pid_for_children");
  return own && of_children && *own == *of_children;
}

}  // namespace

Result<WaitingChild> WaitingChild::start(const std::function<bool()>& become, const std::function<void()>& work) {
  if (!may_make_processes()) return fail(Code::kUnsupported, "", "children would be in another pid namespace");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return sys_error("", "cannot make a pipe");
  UniqueFd hears(ends[0]), tells(ends[1]);
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (pid == 0) become_and_wait(become, work, tells.get());
  if (pid < 0) return sys_error("", "cannot make a process");
  WaitingChild out(pid);
  tells.reset();
  char done = 'n';
  ssize_t got = 0;
  while ((got = ::read(hears.get(), &done, 1)) < 0 && errno == EINTR) {
  }
  if (got != 1 || done != 'y') return fail(Code::kPermission, "", "cannot make a process of its own");
  return out;
}

void WaitingChild::join() {
  if (pid_ <= 0) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

WaitingChild::~WaitingChild() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  join();
}

}  // namespace ckpt::proc
