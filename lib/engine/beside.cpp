#include "lib/engine/beside.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lib/base/pipe.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/pid_namespace.h"
#include "lib/memory/tracking_daemon.h"
#include "lib/proc/own_helpers.h"
#include "lib/proc/procfs.h"
#include "lib/proc/userfault.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/namespaces/entered.h"

namespace ckpt::engine {

namespace {

struct Kind {
  const char* name;
  int flag;  ///< of setns; 0: not entered
};
constexpr Kind kKinds[] = {{"pid", CLONE_NEWPID}, {"mnt", 0},   {"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC},
                           {"uts", CLONE_NEWUTS}, {"cgroup", 0},  {"time", CLONE_NEWTIME},
                           {"user", 0}};

bool same_namespace(int pid, const char* ns) {
  auto ours = proc::read_link(::getpid(), std::string("ns/") + ns),
       theirs = proc::read_link(pid, std::string("ns/") + ns);
  return !ours || !theirs || *ours == *theirs;
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

/// A namespace of `restore --new-pidns` ends with its first process, and that with its last child: this one, until
/// `work` is over.
UniqueFd stay_alive() {
  auto ends = make_pipe();
  if (!ends) return {};
  auto& [end, ours] = *ends;
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
  return std::move(ours);
}

bool has(const Beside& there, const char* kind) {
  return std::find(there.kinds.begin(), there.kinds.end(), kind) != there.kinds.end();
}

/// A process outside that ends the namespace's first one when the worker asks for it. Its exit code: 0, it has done so.
class Executioner {
 public:
  static Result<Executioner> start(int pidfd) {
    Executioner out;
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      return sys_error("", "cannot make a pair of sockets");
    UniqueFd ours(ends[0]), theirs(ends[1]);
    out.pid_ = ::fork();
    if (out.pid_ < 0) return fork_error(errno, "", "cannot make a process");
    if (out.pid_ == 0) {
      ours.reset();
      serve(pidfd, theirs.get());
    }
    out.channel_ = std::move(ours);
    return out;
  }

  /// In the worker.
  Result<void> ask() const {
    int error = 0;
    if (::send(channel_.get(), "", 1, MSG_NOSIGNAL) != 1 || ::recv(channel_.get(), &error, sizeof error, 0) <= 0)
      error = EPIPE;
    return Error(sys_error(error, "process 1", "cannot be ended"))
        .with_target("running: the image is complete, but the process could not be ended");
  }

  /// Once the worker has ended.
  bool has_done_it() {
    channel_.reset();
    // The namespace's first process has ended only once everything that was in it is reaped: daemons of the worker's,
    // too, which are children of this process.
    for (int status = 0;;) {
      const pid_t got = ::waitpid(-1, &status, 0);
      if (got == pid_) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
      if (got < 0 && errno != EINTR) return false;
    }
  }

 private:
  [[noreturn]] static void serve(int pidfd, int channel) {
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
    char byte = 0;
    ssize_t got;
    while ((got = ::recv(channel, &byte, 1, 0)) < 0 && errno == EINTR) {
    }
    if (got != 1) ::_exit(1);
    constexpr int kPatienceMs = 60'000;
    pollfd end{pidfd, POLLIN, 0};
    int error = ::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) == 0 ? 0 : errno;
    if (error == 0 && ::poll(&end, 1, kPatienceMs) == 1) ::_exit(0);
    if (error == 0) error = ETIMEDOUT;
    (void)::send(channel, &error, sizeof error, MSG_NOSIGNAL);
    ::_exit(1);
  }

  UniqueFd channel_;
  pid_t pid_ = -1;
};

/// Of a worker in the pid namespace of others, whose first process may end with what the worker ends.
class CommonEnd {
 public:
  static Result<CommonEnd> create() {
    CommonEnd out;
    void* page = ::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return sys_error("", "cannot make memory for the report");
    out.begun_ = static_cast<int*>(page);  // until this process ends
    return out;
  }
  /// In the worker, before it ends the processes.
  void begin() const { __atomic_store_n(begun_, 1, __ATOMIC_RELEASE); }
  /// Once the worker has ended with `code`: whether it has ended the processes, and perhaps been ended with them.
  bool has_come(int code, int pidfd) const {
    constexpr int kKilled = 128 + SIGKILL, kPatienceMs = 10'000;
    if (__atomic_load_n(begun_, __ATOMIC_ACQUIRE) == 0) return false;
    pollfd end{pidfd, POLLIN, 0};
    return code == 0 || (code == kKilled && ::poll(&end, 1, kPatienceMs) == 1);
  }

 private:
  int* begun_ = nullptr;
};

/// All but the mount namespace. What a child is then in, this process may not be (pid).
Result<void> enter(const Beside& there, int pidfd) {
  int flags = 0;
  for (const Kind& kind : kKinds) flags |= has(there, kind.name) ? kind.flag : 0;
  // In ckpt's own mount namespace, too, the worker's /proc will be another one than the processes'.
  if (has(there, "mnt") || has(there, "pid")) {
    CKPT_TRY_ASSIGN(state::MountNamespace mounts,
                    state::open_mount_namespace("/proc/" + std::to_string(there.pid) + "/ns/mnt"));
    state::set_tree_root(std::move(mounts.root), std::move(mounts.handle));
  }
  if (flags != 0 && ::setns(pidfd, flags) != 0) return sys_error("the process's namespaces", "cannot be entered");
  return {};
}

[[noreturn]] void give_up(const Error& error) {
  std::fprintf(stderr, "ckpt: %s\n", error.text().c_str());
  if (!error.hint.empty()) std::fprintf(stderr, "hint: %s\n", error.hint.c_str());
  ::_exit(exit_code(error.code));
}

[[noreturn]] void be_worker(const Beside& there, const Executioner* executioner, const CommonEnd* common_end,
                            const std::function<int()>& work) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Who may trace a process reaches its root, which here is not that of the container.
  ::prctl(PR_SET_DUMPABLE, 0);
  if (has(there, "pid")) {
    if (auto mounted = mount_own_proc(); !mounted) give_up(mounted.error());
  }
  state::Entered entered;
  entered.init_is_ckpts = there.in_ckpts_own;
  if (!there.in_ckpts_own) entered.kinds = there.kinds;
  entered.callers = there.own;
  if (executioner != nullptr) entered.end_init = [executioner] { return executioner->ask(); };
  if (common_end != nullptr) entered.may_end = [common_end] { common_end->begin(); };
  state::set_entered(std::move(entered));
  UniqueFd alive = there.in_ckpts_own ? stay_alive() : UniqueFd();
  const int code = work();
  std::fflush(nullptr);
  ::_exit(code);
}

[[noreturn]] void work_inside(const Beside& there, const sigset_t& old, const std::function<int()>& work,
                              const std::function<void()>& ended) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto pidfd = proc::open_pidfd(there.pid);
  if (!pidfd) give_up(pidfd.error());
  auto stat = proc::read_stat(there.pid);
  if (!stat) give_up(stat.error());
  // Here, too: another ckpt from outside sees another /proc than this one's worker, if that has one of its own.
  std::optional<capture::CaptureLock> lock;
  if (has(there, "pid")) {
    auto taken = capture::CaptureLock::take({there.pid, stat->start_time});
    if (!taken) give_up(taken.error());
    lock.emplace(std::move(*taken));
  }
  std::optional<Executioner> executioner;
  if (there.inside == 1) {
    auto started = Executioner::start(pidfd->get());
    if (!started) give_up(started.error());
    executioner.emplace(std::move(*started));
  }
  std::optional<CommonEnd> common_end;
  if (has(there, "pid") && !executioner && !there.in_ckpts_own) {
    auto created = CommonEnd::create();
    if (!created) give_up(created.error());
    common_end.emplace(*created);
  }
  if (auto entered = enter(there, pidfd->get()); !entered)
    give_up(Error(std::move(entered).error()).with_hint("run ckpt as root"));
  const pid_t worker = ::fork();
  if (worker < 0) give_up(fork_error(errno, "", "cannot make a process"));
  if (worker == 0) {
    sigprocmask(SIG_SETMASK, &old, nullptr);
    be_worker(there, executioner ? &*executioner : nullptr, common_end ? &*common_end : nullptr, work);
  }
  const int code = relay_signals(worker);
  const bool ended_together =
      executioner ? executioner->has_done_it() : common_end && common_end->has_come(code, pidfd->get());
  if (!ended_together) ::_exit(code);
  ended();
  std::fflush(nullptr);
  ::_exit(0);
}

}  // namespace

Result<std::optional<Beside>> find_beside(int pid) {
  Beside out;
  out.pid = pid;
  for (const Kind& kind : kKinds) {
    if (!same_namespace(pid, kind.name)) out.kinds.emplace_back(kind.name);
    if (auto ours = proc::read_link(::getpid(), std::string("ns/") + kind.name)) out.own.push_back(std::move(*ours));
  }
  if (out.kinds.empty()) return std::optional<Beside>();
  CKPT_TRY_ASSIGN(proc::Status status, proc::read_status(pid, pid));
  out.inside = status.ns_pids.empty() ? pid : status.ns_pids.back();
  const int init = has(out, "pid") ? find_init(pid) : 0;
  // Namespaces of the same user namespace were made by somebody with root's rights; who else runs ckpt as their init is
  // no stranger.
  auto theirs = proc::read_link(pid, "ns/mnt"), of_init = proc::read_link(init, "ns/mnt");
  out.in_ckpts_own = init != 0 && proc::runs_this_program(init) && same_namespace(pid, "user") && theirs && of_init &&
                     *theirs == *of_init &&
                     std::none_of(out.kinds.begin(), out.kinds.end(),
                                  [](const std::string& kind) { return kind != "pid" && kind != "mnt"; });
  return std::optional<Beside>(std::move(out));
}

Result<int> run_beside(const Beside& there, const std::function<int()>& work, const std::function<void()>& ended) {
  std::fflush(nullptr);
  const sigset_t old = block_relayed_signals();
  const pid_t child = ::fork();
  if (child < 0) return sys_error("", "cannot make a process");
  if (child == 0) work_inside(there, old, work, ended);
  const int code = relay_signals(child);
  sigprocmask(SIG_SETMASK, &old, nullptr);
  return code;
}

}  // namespace ckpt::engine
