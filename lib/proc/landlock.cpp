#include "lib/proc/landlock.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/unique_fd.h"
#include "lib/proc/kernel_memory.h"
#include "lib/proc/userfault.h"
#include "lib/proc/waiting_child.h"

namespace ckpt::proc {

namespace {

constexpr long kCreateRuleset = SYS_landlock_create_ruleset, kRestrictSelf = SYS_landlock_restrict_self;
constexpr const char* kLandlock = "Landlock";

/// Where all security modules keep what they have of a thread's credentials, one behind the other.
Result<uint64_t> security_of(const KernelMemory& kernel, uint64_t task) {
  CKPT_TRY_ASSIGN(const uint64_t credentials, kernel.read<uint64_t>(task, "task_struct", "cred"));
  return kernel.read<uint64_t>(credentials, "cred", "security");
}

Result<uint64_t> security_of_process(const KernelMemory& kernel, int pid) {
  CKPT_TRY_ASSIGN(const UniqueFd pidfd, open_pidfd(pid));
  CKPT_TRY_ASSIGN(const uint64_t task, kernel.task_of(pid, pidfd.get()));
  return security_of(kernel, task);
}

/// Which of those is Landlock's depends on the modules before it. A child that was made to differ from ckpt in nothing
/// else shows it: the pointer to its domain is the first thing in there that is not as ckpt has it.
Result<uint64_t> find_domain_offset() {
  constexpr uint64_t kKernel = uint64_t{1} << 63, kMost = 256;
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const WaitingChild child, WaitingChild::start(enter_landlock_domain));
  CKPT_TRY_ASSIGN(const uint64_t own, security_of_process(*kernel, ::getpid()));
  CKPT_TRY_ASSIGN(const uint64_t other, security_of_process(*kernel, child.pid()));
  for (uint64_t at = 0; at < kMost; at += sizeof(uint64_t)) {
    CKPT_TRY_ASSIGN(const uint64_t here, kernel->word_at(own + at));
    CKPT_TRY_ASSIGN(const uint64_t there, kernel->word_at(other + at));
    if (here == there) continue;
    if (there >= kKernel) return at;
    break;
  }
  return fail(Code::kUnsupported, kLandlock, "where the kernel keeps the domain of a thread is not known");
}

const Result<uint64_t>& domain_offset() {
  static const Result<uint64_t> offset = find_domain_offset();
  return offset;
}

/// The list changes while the threads run.
Result<bool> look_at_threads(const KernelMemory& kernel, uint64_t leader, uint64_t domain) {
  constexpr int kMost = 1 << 20;
  CKPT_TRY_ASSIGN(const uint64_t signal, kernel.read<uint64_t>(leader, "task_struct", "signal"));
  CKPT_TRY_ASSIGN(const uint64_t head_at, kernel.offset_of("signal_struct", "thread_head"));
  CKPT_TRY_ASSIGN(const uint64_t node_at, kernel.offset_of("task_struct", "thread_node"));
  const uint64_t head = signal + head_at;
  CKPT_TRY_ASSIGN(uint64_t at, kernel.word_at(head));
  for (int i = 0; at != head; ++i) {
    if (i == kMost) return fail(Code::kBusy, kLandlock, "the threads of a process change all the time");
    CKPT_TRY_ASSIGN(const uint64_t security, security_of(kernel, at - node_at));
    CKPT_TRY_ASSIGN(const uint64_t found, kernel.word_at(security + domain));
    if (found != 0) return true;
    CKPT_TRY_ASSIGN(at, kernel.word_at(at));
  }
  return false;
}

}  // namespace

bool has_landlock() {
  constexpr unsigned kVersion = 1;  // LANDLOCK_CREATE_RULESET_VERSION
  static const bool has = ::syscall(kCreateRuleset, nullptr, 0, kVersion) > 0;
  return has;
}

bool enter_landlock_domain() {
  const uint64_t handled = 1;  // LANDLOCK_ACCESS_FS_EXECUTE
  if (::syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  const long rules = ::syscall(kCreateRuleset, &handled, sizeof handled, 0);
  return rules >= 0 && ::syscall(kRestrictSelf, rules, 0) == 0;
}

Result<bool> is_in_landlock_domain(int pid, int pidfd) {
  constexpr int kTries = 4;
  if (!has_landlock()) return false;
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  if (!domain_offset()) return Error(domain_offset().error());
  for (int i = 1;; ++i) {
    CKPT_TRY_ASSIGN(const uint64_t leader, kernel->task_of(pid, pidfd));
    auto found = look_at_threads(*kernel, leader, *domain_offset());
    if (found || i == kTries) return found;
  }
}

void prepare_landlock_look() {
  if (has_landlock()) (void)domain_offset();
}

}  // namespace ckpt::proc
