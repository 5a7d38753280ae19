#include "lib/engine/pid_namespace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "lib/base/io.h"
#include "lib/base/pipe.h"
#include "lib/base/signals.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/userfault.h"

namespace ckpt::engine {

namespace {

constexpr int kForwarded[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};

/// /proc as the caller of ckpt sees it, once there is another one.
int g_outer_proc = -1;

/// In number 1: a /proc of the namespace, and the numbers of what follows above those of the image.
Result<void> prepare_namespace(int highest) {
  CKPT_TRY(mount_own_proc());
  return number_processes_above(highest);
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

void let_go_of_streams() {
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null.get(), fd);
}

/// Number 1: reaps whatever ends, passes signals on, and ends with the last process; at once when the work failed.
[[noreturn]] void be_init(pid_t worker, bool detach, int report) {
  const sigset_t watched = relayed_signals();
  int code = 0;
  for (bool worked = false;;) {
    int status = 0;
    pid_t got = ::waitpid(-1, &status, WNOHANG);
    if (got == worker) {
      worked = true;
      code = code_of(status);
      (void)!::write(report, &code, sizeof code);
      ::close(report);
      // One that was killed may have let go of what it made: else that ends with it, and so this process.
      const bool killed = detach && WIFSIGNALED(status);
      if ((code != 0 && !killed) || !detach) ::_exit(code & 0xff);
      let_go_of_streams();
    }
    if (got > 0) continue;
    if (got < 0 && errno == ECHILD) ::_exit(code & 0xff);
    siginfo_t info{};
    int signal = ::sigwaitinfo(&watched, &info);
    if (signal > 0 && signal != SIGCHLD && !worked) ::kill(worker, signal);
  }
}

[[noreturn]] void run_init(const PidNamespaceOptions& options, const std::function<int()>& work, const sigset_t& old,
                           int report) {
  auto prepared = prepare_namespace(options.highest);
  if (!prepared) {
    fmt::print(stderr, "ckpt: {}\n", prepared.error().text());
    ::_exit(exit_code(prepared.error().code));
  }
  pid_t worker = ::fork();
  if (worker < 0) ::_exit(exit_code(Code::kNoRoom));
  if (worker == 0) {
    ::close(report);
    sigprocmask(SIG_SETMASK, &old, nullptr);
    int code = work();
    std::fflush(nullptr);
    ::_exit(code);
  }
  options.drop();
  be_init(worker, options.detach, report);
}

}  // namespace

sigset_t relayed_signals() {
  sigset_t out;
  sigemptyset(&out);
  for (int signal : kForwarded) {
    if (!is_ignored(signal)) sigaddset(&out, signal);
  }
  sigaddset(&out, SIGCHLD);
  return out;
}

Result<void> mount_own_proc() {
  if (::unshare(CLONE_NEWNS) != 0) return sys_error("mount namespace", "cannot be made");
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return sys_error("/", "cannot be kept from other mount namespaces");
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
    return sys_error("/proc", "cannot be mounted");
  return {};
}

Result<void> number_processes_above(int highest) {
  auto text = io::read_file("/proc/sys/kernel/pid_max", 64);
  constexpr int kRoom = 1000, kLow = 10;
  const int limit = text ? std::atoi(text->c_str()) : 32768;
  const int last = highest + kRoom < limit ? highest + kRoom / 10 : kLow;
  CKPT_TRY_ASSIGN(UniqueFd fd, io::open_file("/proc/sys/kernel/ns_last_pid", O_WRONLY));
  return io::write_all(fd.get(), as_bytes(std::to_string(last)), "ns_last_pid");
}

sigset_t block_relayed_signals() {
  const sigset_t watched = relayed_signals();
  sigset_t old;
  sigprocmask(SIG_BLOCK, &watched, &old);
  return old;
}

int relay_signals(pid_t child) {
  const sigset_t watched = relayed_signals();
  for (;;) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return code_of(status);
    siginfo_t info{};
    int signal = ::sigwaitinfo(&watched, &info);
    // What the terminal sends goes to the whole group, which the child is in as well.
    if (signal > 0 && signal != SIGCHLD && info.si_code != SI_KERNEL) ::kill(child, signal);
  }
}

Result<int> run_in_pid_namespace(const PidNamespaceOptions& options, const std::function<int()>& work) {
  std::fflush(nullptr);
  CKPT_TRY(remember_outer_proc());
  CKPT_TRY_ASSIGN(auto ends, make_pipe());
  auto& [reports, report] = ends;
  const sigset_t old = block_relayed_signals();
  if (::unshare(CLONE_NEWPID) != 0) return sys_error("pid namespace", "cannot be made");
  pid_t init = ::fork();
  if (init < 0) return fork_error(errno, "", "cannot make a process");
  if (init == 0) run_init(options, work, old, report.get());
  report.reset();
  options.drop();
  if (!options.detach) return relay_signals(init);
  int status = 0, code = 0;
  ssize_t got = 0;
  while ((got = ::read(reports.get(), &code, sizeof code)) < 0 && errno == EINTR) {
  }
  if (got == sizeof code) return code;
  ::waitpid(init, &status, 0);
  return code_of(status);
}

Result<void> remember_outer_proc() {
  CKPT_TRY_ASSIGN(UniqueFd proc, io::open_file("/proc", O_RDONLY | O_DIRECTORY));
  g_outer_proc = proc.release();
  return {};
}

int number_outside(int pid) {
  if (g_outer_proc < 0) return pid;
  auto pidfd = proc::open_pidfd(pid);
  if (!pidfd) return pid;
  UniqueFd file(::openat(g_outer_proc, fmt::format("self/fdinfo/{}", pidfd->get()).c_str(), O_RDONLY | O_CLOEXEC));
  auto text = file ? io::read_all(file.get(), 4096, "fdinfo") : Result<std::string>(Error());
  constexpr std::string_view kName = "\nPid:\t";
  size_t at = text ? text->find(kName) : std::string::npos;
  return at == std::string::npos ? pid : std::atoi(text->c_str() + at + kName.size());
}

}  // namespace ckpt::engine
