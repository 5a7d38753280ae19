#include "lib/rebuild/sockets_run_as.h"

#include <fmt/format.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace ckpt::rebuild {

namespace {

/// In the child. The ids are set with raw calls: those of the C library speak to threads that are not there.
bool take_identity(const store::SocketCredentials& who) {
  if (who.pid == 0) return true;
  bool same = ::geteuid() == who.uid && ::getegid() == who.gid;
  // A change of ids would take the capabilities away that bind, connect and sendmsg may need.
  if (!same && ::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) != 0) return false;
  // Groups are part of SO_PEERGROUPS. Without the right to set them they stay.
  if (::syscall(SYS_setgroups, who.groups.size(), who.groups.data()) != 0 && errno != EPERM) return false;
  if (same) return true;
  return ::syscall(SYS_setresgid, -1, who.gid, -1) == 0 && ::syscall(SYS_setresuid, -1, who.uid, -1) == 0;
}

/// A child that shares the descriptor table; 0 in the child. -1 and errno.
pid_t fork_sharing_files(int number) {
  pid_t wanted = number;
  clone_args args{};
  args.flags = CLONE_FILES;
  if (number != 0) args.set_tid = reinterpret_cast<uint64_t>(&wanted), args.set_tid_size = 1;
  return static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof args));
}

}  // namespace

Result<SharedPair> SharedPair::create() {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return sys_error("", "cannot share a page with a child");
  return SharedPair(static_cast<int*>(page));
}

SharedPair::~SharedPair() {
  if (values_ != nullptr) ::munmap(values_, 4096);
}

Result<CallResult> run_as(const store::SocketCredentials& who, const std::function<int()>& call) {
  CKPT_TRY_ASSIGN(SharedPair shared, SharedPair::create());
  int* out = shared.values();
  enum { kNoIdentity = 1, kDone = 2 };
  CallResult result;
  pid_t child = fork_sharing_files(who.pid);
  if (child < 0 && (errno == EEXIST || errno == EPERM || errno == EINVAL)) {
    result.had_number = false;
    child = fork_sharing_files(0);
  }
  if (child < 0) return sys_error("", "cannot make a child to call as another process");
  if (child == 0) {
    out[1] = kNoIdentity;
    if (take_identity(who)) {
      out[0] = call();
      out[1] = kDone;
    } else {
      out[0] = -errno;
    }
    ::syscall(SYS_exit_group, 0);
  }
  int status = 0;
  while (::waitpid(child, &status, __WALL) < 0 && errno == EINTR) {
  }
  if (out[1] == kNoIdentity) return sys_error(-out[0], "", fmt::format("cannot take the ids {}:{}", who.uid, who.gid));
  if (out[1] != kDone) return Error(Code::kIo, "", "the child that calls as another process died");
  result.value = out[0];
  return result;
}

}  // namespace ckpt::rebuild
