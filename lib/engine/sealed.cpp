#include "lib/engine/sealed.h"

#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "lib/base/io.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/pid_namespace.h"

namespace ckpt::engine {

namespace {

/// struct mount_attr of mount_setattr(2), Linux 5.12.
struct MountAttributes {
  uint64_t set = 0, clear = 0, propagation = 0, user_namespace = 0;
};
constexpr long kMountSetattr = 442;
constexpr uint64_t kReadOnly = 1;
constexpr unsigned kRecursive = 0x8000;

Result<void> make_read_only() {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    return sys_error("/", "cannot be kept from other mount namespaces");
  MountAttributes attributes;
  attributes.set = kReadOnly;
  if (::syscall(kMountSetattr, AT_FDCWD, "/", kRecursive, &attributes, sizeof attributes) != 0)
    return sys_error("/", "cannot be made read-only (mount_setattr, Linux 5.12)");
  return {};
}

/// A mount of the file alone. Where that fails, opening it for writing will.
void let_write(const std::string& path) {
  MountAttributes attributes;
  attributes.clear = kReadOnly;
  if (::mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) == 0)
    (void)::syscall(kMountSetattr, AT_FDCWD, path.c_str(), 0, &attributes, sizeof attributes);
}

Result<void> make_mounts(const SealOptions& options) {
  CKPT_TRY(make_read_only());
  for (const std::string& path : options.written) let_write(path);
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0)
    return sys_error("/proc", "cannot be mounted");
  if (::mount("tmpfs", kSealedScratch, "tmpfs", MS_NOSUID, "mode=0755") != 0)
    return sys_error(kSealedScratch, "no file system in memory can be mounted");
  // Terminals are allocated in it: of the real one the numbers would be seen to be taken.
  if (::mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620") != 0 &&
      errno != ENOENT)
    return sys_error("/dev/pts", "cannot be mounted");
  const std::string temporary = std::string(kSealedScratch) + "/tmp";
  if (::mkdir(temporary.c_str(), 0700) != 0 || ::chmod(temporary.c_str(), 01777) != 0)
    return sys_error(temporary, "cannot be made");
  ::setenv("TMPDIR", temporary.c_str(), 1);
  const mode_t mask = ::umask(0);  // whoever had a deleted file open makes it again himself
  for (const std::string& folder : options.folders) {
    std::error_code ec;
    std::filesystem::create_directories(kSealedScratch + folder, ec);
    if (ec) return sys_error(ec.value(), kSealedScratch + folder, "cannot be made");
  }
  ::umask(mask);
  return {};
}

Result<void> bring_up_loopback() {
  UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (!fd || ::ioctl(fd.get(), SIOCSIFFLAGS, &request) != 0) return sys_error("lo", "cannot be brought up");
  return {};
}

/// `ip route add local default dev lo`: every address is this machine's.
Result<void> own_every_address(uint8_t family) {
  struct {
    nlmsghdr header;
    rtmsg route;
    rtattr attribute;
    int interface;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = RTM_NEWROUTE;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK;
  request.route.rtm_family = family, request.route.rtm_table = RT_TABLE_LOCAL, request.route.rtm_protocol = RTPROT_BOOT;
  request.route.rtm_scope = RT_SCOPE_HOST, request.route.rtm_type = RTN_LOCAL;
  request.attribute.rta_type = RTA_OIF, request.attribute.rta_len = RTA_LENGTH(sizeof(int));
  request.interface = 1;
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  struct {
    nlmsghdr header;
    nlmsgerr error;
  } answer{};
  if (!fd || ::send(fd.get(), &request, sizeof request, 0) < 0 ||
      ::recv(fd.get(), &answer, sizeof answer, MSG_TRUNC) < 0)
    return sys_error("lo", "cannot be given every address");
  if (answer.error.error != 0) return sys_error(-answer.error.error, "lo", "cannot be given every address");
  return {};
}

Result<void> make_network() {
  CKPT_TRY(bring_up_loopback());
  CKPT_TRY(own_every_address(AF_INET));
  if (own_every_address(AF_INET6))
    (void)io::write_file("/proc/sys/net/ipv6/ip_nonlocal_bind", "1");  // fails where there is no IPv6
  return {};
}

Result<void> prepare(const SealOptions& options) {
  CKPT_TRY(make_mounts(options));
  CKPT_TRY(make_network());
  return number_processes_above(options.highest);
}

/// Ends with its parent, whatever happens to that.
void end_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (parent != 0 && ::getppid() != parent) ::_exit(1);
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

using Work = std::function<int(Result<void>)>;

/// Number 1 of the namespace: with it everything ends.
[[noreturn]] void be_init(const SealOptions& options, const Work& work) {
  end_with(0);
  if (auto prepared = prepare(options); !prepared) ::_exit(work(std::move(prepared)));
  const pid_t worker = ::fork();
  if (worker < 0) ::_exit(work(sys_error("", "cannot make a process")));
  if (worker == 0) {
    end_with(1);
    ::setsid();  // a session that can be told from the image's
    ::_exit(work({}));
  }
  for (;;) {
    int status = 0;
    const pid_t got = ::waitpid(-1, &status, 0);
    if (got == worker) ::_exit(code_of(status));
    if (got < 0 && errno != EINTR) ::_exit(1);
  }
}

[[noreturn]] void be_outer(pid_t ckpt, const SealOptions& options, const Work& work) {
  end_with(ckpt);
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) != 0)
    ::_exit(work(sys_error("namespaces", "cannot be made")));
  const pid_t init = ::fork();
  if (init < 0) ::_exit(work(sys_error("", "cannot make a process")));
  if (init == 0) be_init(options, work);
  int status = 0;
  while (::waitpid(init, &status, 0) < 0 && errno == EINTR) {
  }
  ::_exit(code_of(status));
}

}  // namespace

Result<int> run_sealed(const SealOptions& options, const Work& work, const Cancel& cancel) {
  const pid_t ckpt = ::getpid(), outer = ::fork();
  if (outer < 0) return sys_error("", "cannot make a process");
  if (outer == 0) be_outer(ckpt, options, work);
  UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, outer, 0)));
  pollfd end{handle.get(), POLLIN, 0};
  constexpr int kPauseMs = 50;
  while (handle && ::poll(&end, 1, kPauseMs) <= 0 && !cancel.requested()) {
  }
  if (cancel.requested()) ::kill(outer, SIGKILL);
  int status = 0;
  while (::waitpid(outer, &status, 0) < 0) {
    if (errno != EINTR) return sys_error("", "cannot wait for a process");
  }
  CKPT_TRY(cancel.check());
  return code_of(status);
}

}  // namespace ckpt::engine
