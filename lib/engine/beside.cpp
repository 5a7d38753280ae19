#include "lib/engine/beside.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lib/base/unique_fd.h"
#include "lib/engine/pid_namespace.h"
#include "lib/proc/own_helpers.h"
#include "lib/proc/procfs.h"
#include "lib/proc/userfault.h"

namespace ckpt::engine {

namespace {

bool same_namespace(int pid, const char* ns) {
  auto ours = proc::read_link(::getpid(), std::string("ns/") + ns),
       theirs = proc::read_link(pid, std::string("ns/") + ns);
  return ours && theirs && *ours == *theirs;
}

/// The namespace's number 1, found among the process's ancestors; 0: it is not among them.
int find_init(int pid) {
  for (int at = pid; at > 0;) {
    auto status = proc::read_status(at, at);
    if (!status || status->ns_pids.size() < 2) return 0;
    if (status->ns_pids.back() == 1) return at;
    at = status->parent;
  }
  return 0;
}

/// A namespace ends with its first process, and that ends with its last child: this one, until `work` is over.
UniqueFd stay_alive() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  UniqueFd end(ends[0]), ours(ends[1]);
  const pid_t middle = ::fork();
  if (middle == 0) {
    if (::fork() == 0) {
      ours.reset();
      ::setsid();
      char byte;
      while (::read(end.get(), &byte, 1) < 0 && errno == EINTR) {
      }
    }
    ::_exit(0);
  }
  if (middle > 0) ::waitpid(middle, nullptr, 0);
  return ours;
}

/// The same folder, by the same name, in the other mount namespace.
Result<void> enter(int pidfd) {
  char folder[PATH_MAX];
  struct stat before{}, after{};
  if (::getcwd(folder, sizeof folder) == nullptr || ::stat(".", &before) != 0)
    return sys_error("the working folder", "cannot be named");
  if (::setns(pidfd, CLONE_NEWPID | CLONE_NEWNS) != 0)
    return sys_error("the process's namespaces", "cannot be entered");
  if (::chdir(folder) != 0 || ::stat(".", &after) != 0)
    return sys_error(folder, "cannot be entered beside the process");
  if (before.st_dev != after.st_dev || before.st_ino != after.st_ino)
    return fail(Code::kUnsupported, folder, "is another folder where the process is");
  return {};
}

[[noreturn]] void work_inside(const Beside& there, const sigset_t& old, const std::function<int()>& work) {
  auto pidfd = proc::open_pidfd(there.init);
  Result<void> entered = pidfd ? enter(pidfd->get()) : Result<void>(pidfd.error());
  if (!entered) {
    std::fprintf(stderr, "ckpt: %s\n", entered.error().text().c_str());
    ::_exit(exit_code(entered.error().code));
  }
  const pid_t worker = ::fork();
  if (worker < 0) ::_exit(exit_code(Code::kNoRoom));
  if (worker > 0) ::_exit(relay_signals(worker));
  UniqueFd alive = stay_alive();
  sigprocmask(SIG_SETMASK, &old, nullptr);
  const int code = work();
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

Result<std::optional<Beside>> find_beside(int pid) {
  if (same_namespace(pid, "pid")) return std::optional<Beside>();
  for (const char* ns : {"net", "ipc", "uts", "user", "cgroup", "time"}) {
    if (!same_namespace(pid, ns)) return std::optional<Beside>();
  }
  const int init = find_init(pid);
  // Namespaces of the same user namespace were made by somebody with root's rights; who else runs ckpt as their init is
  // no stranger.
  if (init == 0 || !proc::runs_this_program(init)) return std::optional<Beside>();
  CKPT_TRY_ASSIGN(proc::Status status, proc::read_status(pid, pid));
  return std::optional<Beside>(Beside{init, status.ns_pids.back()});
}

Result<int> run_beside(const Beside& there, const std::function<int()>& work) {
  std::fflush(nullptr);
  const sigset_t old = block_relayed_signals();
  const pid_t child = ::fork();
  if (child < 0) return sys_error("", "cannot make a process");
  if (child == 0) work_inside(there, old, work);
  const int code = relay_signals(child);
  sigprocmask(SIG_SETMASK, &old, nullptr);
  return code;
}

}  // namespace ckpt::engine
