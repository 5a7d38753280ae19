#include "lib/engine/watched_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "lib/base/io.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

/// linux/pidfd.h of 6.13 (the request) and 6.15 (exit_code); the C library's headers of Debian 12 have neither.
struct PidfdInfo {
  uint64_t mask, cgroup_id;
  uint32_t pid, tgid, ppid, ids[8];
  int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);
constexpr uint64_t kPidfdInfoExit = 1 << 3;

ProcessEnd end_of(int status) {
  ProcessEnd out;
  if (WIFSIGNALED(status))
    out.signal = WTERMSIG(status);
  else
    out.code = WEXITSTATUS(status);
  return out;
}

}  // namespace

Result<WatchedProcess> WatchedProcess::open(int pid) {
  const std::string subject = "process " + std::to_string(pid);
  WatchedProcess out;
  out.pid_ = pid;
  out.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!out.pidfd_ && errno == ESRCH) return fail(Code::kNotFound, subject, "there is no such process");
  if (!out.pidfd_ && errno == EINVAL) return fail(Code::kUsage, subject, "is no process, or a thread of one");
  if (!out.pidfd_) return sys_error(subject, "cannot be watched");
  CKPT_TRY_ASSIGN(const proc::Stat stat, proc::read_stat(pid));
  out.start_time_ = stat.start_time;
  out.name_ = stat.comm;
  return out;
}

bool WatchedProcess::has_ended() const {
  pollfd ready{pidfd_.get(), POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0;
}

std::optional<ProcessEnd> WatchedProcess::end() const {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == pid_) return end_of(status);
  auto stat = proc::read_stat(pid_);
  if (stat && stat->is_zombie() && stat->start_time == start_time_) return end_of(stat->exit_status);
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (::ioctl(pidfd_.get(), kPidfdGetInfo, &info) == 0 && (info.mask & kPidfdInfoExit) != 0)
    return end_of(info.exit_code);
  return std::nullopt;
}

void WatchedProcess::signal(int number) const { ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0); }

Result<void> WatchedProcess::lock() {
  // A file of the process itself that only its owner and root may open for writing; captures lock another one.
  const std::string path = "/proc/" + std::to_string(pid_) + "/coredump_filter";
  CKPT_TRY_ASSIGN(UniqueFd file, io::open_file(path, O_RDWR));
  struct flock all {};
  all.l_type = F_WRLCK;
  if (::fcntl(file.get(), F_SETLK, &all) != 0) {
    const std::string subject = "process " + std::to_string(pid_);
    if (errno == EACCES || errno == EAGAIN) return fail(Code::kBusy, subject, "is watched by another ckpt already");
    return sys_error(subject, "cannot be locked against other watchers");
  }
  lock_ = std::move(file);
  return {};
}

}  // namespace ckpt::engine
