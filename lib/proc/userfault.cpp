#include "lib/proc/userfault.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace ckpt::proc {

namespace {
constexpr uint64_t kUserModeOnly = 1;                // UFFD_USER_MODE_ONLY: allowed without privilege
constexpr uint64_t kFeatureWpAsync = uint64_t{1} << 15;  // UFFD_FEATURE_WP_ASYNC, 6.7
}  // namespace

Result<UniqueFd> make_write_tracker(BorrowedThread& thread, int pidfd) {
  CKPT_TRY_ASSIGN(UniqueFd fd, thread.take_new_fd("make a userfaultfd", pidfd, SYS_userfaultfd,
                                                  {O_CLOEXEC | O_NONBLOCK | kUserModeOnly}));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kFeatureWpAsync;
  if (::ioctl(fd.get(), UFFDIO_API, &api) != 0) {
    return fail(Code::kUnsupported, "userfaultfd", "this kernel cannot track writes asynchronously (6.7 can)");
  }
  return fd;
}

Result<void> track_range(int userfault, uint64_t start, uint64_t end) {
  uffdio_register reg{};
  reg.range.start = start, reg.range.len = end - start;
  reg.mode = UFFDIO_REGISTER_MODE_WP;
  if (::ioctl(userfault, UFFDIO_REGISTER, &reg) != 0) return sys_error("userfaultfd", "cannot track a mapping");
  return {};
}

Result<UniqueFd> open_pidfd(int pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd && errno == ESRCH) return fail(Code::kNotFound, "process " + std::to_string(pid), "does not exist");
  if (!fd && errno == EINVAL)
    return fail(Code::kUsage, std::to_string(pid), "is not the pid of a process (a thread's id?)");
  if (!fd) return sys_error("process " + std::to_string(pid), "cannot open");
  return fd;
}

Result<UniqueFd> get_remote_fd(int pidfd, int remote_fd) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd, remote_fd, 0)));
  if (!fd && errno == ESRCH) return fail(Code::kNotFound, "the process", "has ended");
  if (!fd) return sys_error("descriptor " + std::to_string(remote_fd), "cannot duplicate it out of the process");
  return fd;
}

}  // namespace ckpt::proc
