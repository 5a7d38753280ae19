#include "lib/state/run_as.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "lib/state/files/tree_root.h"
#include "lib/state/namespaces/user.h"

namespace ckpt::restore {

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

Result<SharedValues> SharedValues::create() {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return sys_error("", "cannot share a page with a child");
  return SharedValues(static_cast<int*>(page));
}

SharedValues::~SharedValues() {
  if (values_ != nullptr) ::munmap(values_, 4096);
}

namespace {

/// Under this number where it can be had.
Result<CallResult> run_in_child(int number, const std::function<bool()>& become, const std::function<int()>& call,
                                const char* why_not) {
  CKPT_TRY_ASSIGN(SharedValues shared, SharedValues::create());
  int* out = shared.values();
  enum { kNoIdentity = 1, kDone = 2 };
  CallResult result;
  pid_t child = fork_sharing_files(number);
  if (child < 0 && number != 0 && (errno == EEXIST || errno == EPERM || errno == EINVAL)) {
    result.had_number = false;
    child = fork_sharing_files(0);
  }
  if (child < 0) return sys_error("", "cannot make a child to call as another process");
  if (child == 0) {
    out[1] = kNoIdentity;
    if (become()) {
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
  if (out[1] == kNoIdentity) return sys_error(-out[0], "", why_not);
  if (out[1] != kDone) return Error(Code::kIo, "", "the child that calls as another process died");
  result.value = out[0];
  return result;
}

/// In the child. With these ids, as they are outside, and all capabilities inside.
bool enter_user_namespace_as(uint32_t uid, uint32_t gid, const std::vector<uint32_t>& groups) {
  return ::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) == 0 &&
         ::syscall(SYS_setgroups, groups.size(), groups.data()) == 0 && ::syscall(SYS_setresgid, gid, gid, gid) == 0 &&
         ::syscall(SYS_setresuid, uid, uid, uid) == 0 &&
         ::setns(state::tree_user()->handle.get(), CLONE_NEWUSER) == 0;
}

bool give_up_capabilities(uint64_t but) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2];
  if (::syscall(SYS_capget, &header, sets) != 0) return false;
  for (int half : {0, 1}) {
    sets[half].permitted &= static_cast<uint32_t>(but >> (32 * half));
    sets[half].effective = sets[half].permitted, sets[half].inheritable = 0;
  }
  return ::syscall(SYS_capset, &header, sets) == 0;
}

/// In the child. Raw calls, as above.
bool take_credentials(const Credentials& who) {
  if (::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) != 0) return false;
  if (::syscall(SYS_setgroups, who.groups.size(), who.groups.data()) != 0) return false;
  if (::syscall(SYS_setresgid, who.gid[0], who.gid[1], who.gid[2]) != 0) return false;
  if (::syscall(SYS_setresuid, who.uid[0], who.uid[1], who.uid[2]) != 0) return false;
  ::syscall(SYS_setfsgid, who.gid[3]), ::syscall(SYS_setfsuid, who.uid[3]);
  // The capabilities are those that a process has in its user namespace.
  if (state::tree_user() != nullptr && ::setns(state::tree_user()->handle.get(), CLONE_NEWUSER) != 0) return false;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2];
  if (::syscall(SYS_capget, &header, sets) != 0) return false;
  for (int half : {0, 1}) sets[half].effective = static_cast<uint32_t>(who.capabilities >> (32 * half));
  return ::syscall(SYS_capset, &header, sets) == 0;
}

/// The same.
bool take_rights(const Rights& rights) {
  if (state::tree_user() != nullptr) {
    return enter_user_namespace_as(rights.uid, rights.gid, rights.groups) && give_up_capabilities(rights.capabilities);
  }
  if (::syscall(SYS_setgroups, rights.groups.size(), rights.groups.data()) != 0 && errno != EPERM) return false;
  (void)::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
  if (::getegid() != rights.gid && ::syscall(SYS_setresgid, rights.gid, rights.gid, rights.gid) != 0) return false;
  if (::geteuid() != rights.uid && ::syscall(SYS_setresuid, rights.uid, rights.uid, rights.uid) != 0) return false;
  return give_up_capabilities(rights.capabilities);
}

}  // namespace

Result<CallResult> run_as(const store::SocketCredentials& who, const std::function<int()>& call) {
  const std::string why_not = fmt::format("cannot take the ids {}:{}", who.uid, who.gid);
  return run_in_child(who.pid, [&] { return take_identity(who); }, call, why_not.c_str());
}

Rights rights_of(const store::Thread& thread) {
  return {thread.uid[3], thread.gid[3], thread.groups, thread.cap_effective};
}

Result<int> run_with(const Rights& rights, const std::function<int()>& call) {
  const std::string why_not = fmt::format("cannot take the rights of user {}, group {}", rights.uid, rights.gid);
  CKPT_TRY_ASSIGN(CallResult result,
                  run_in_child(
                      0, [&] { return state::enter_tree_root() && take_rights(rights); }, call, why_not.c_str()));
  return result.value;
}

Result<int> run_with_credentials(const Credentials& who, const std::function<int()>& call) {
  const std::string why_not =
      fmt::format("cannot take the credentials of user {}, group {}, and its capabilities", who.uid[1], who.gid[1]);
  CKPT_TRY_ASSIGN(CallResult result, run_in_child(0, [&] { return take_credentials(who); }, call, why_not.c_str()));
  return result.value;
}

Result<int> run_in_user_namespace(const std::function<int()>& call) {
  const store::UserNamespace& user = state::tree_user()->what;
  const uint32_t uid = state::id_outside(user.uids, 0).value_or(user.owner);
  const uint32_t gid = state::id_outside(user.gids, 0).value_or(uid);
  CKPT_TRY_ASSIGN(CallResult result, run_in_child(
                                         0, [&] { return enter_user_namespace_as(uid, gid, {}); }, call,
                                         "cannot enter the processes' user namespace"));
  return result.value;
}

}  // namespace ckpt::restore
