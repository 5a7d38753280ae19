#include "lib/state/landlock/capture.h"

#include <linux/capability.h>
#include <linux/kcmp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "lib/proc/landlock.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

namespace {

bool become(uint32_t uid, uint32_t gid) {
  if (::syscall(SYS_setresgid, gid, gid, gid) != 0 || ::syscall(SYS_setresuid, uid, uid, uid) != 0) return false;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2] = {};
  if (::syscall(SYS_capset, &header, none) != 0) return false;
  // Who may not be dumped is looked into by nobody.
  return ::syscall(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

/// Whether ckpt's children have the same numbers for it, and the same rights over it.
bool is_where_children_are(int pid) {
  const int own = ::getpid();
  for (const auto& [theirs, ours] : {std::pair("ns/pid", "ns/pid_for_children"), std::pair("ns/pid", "ns/pid"),
                                     std::pair("ns/user", "ns/user")}) {
    auto left = proc::read_link(pid, theirs), right = proc::read_link(own, ours);
    if (!left || !right || *left != *right) return false;
  }
  return true;
}

}  // namespace

Outsiders::Outsiders(const Inventory& running) : asks_(proc::has_landlock()) {
  if (!asks_) return;
  bool all = true;
  for (const store::ProcessImage& process : running.image.processes) {
    if (process.zombie || process.threads.empty()) continue;
    if (!is_where_children_are(process.pid)) elsewhere_.push_back(process.pid), all = false;
    else all = add(process.threads[0]) && all;
    all = all && process.threads[0].labels.empty();  // other modules may forbid it as well
  }
  if (!all) proc::prepare_landlock_look();
}

bool Outsiders::add(const store::Thread& thread) {
  constexpr size_t kMost = 16;
  const std::pair ids(thread.uid[0], thread.gid[0]);
  if (children_.contains(ids)) return true;
  if (children_.size() == kMost) return false;
  auto child = proc::WaitingChild::start([&] { return become(ids.first, ids.second); });
  if (!child) return false;
  children_.emplace(ids, std::move(*child));
  return true;
}

int Outsiders::of(const store::ProcessImage& process, const store::Thread& thread) const {
  if (std::find(elsewhere_.begin(), elsewhere_.end(), process.pid) != elsewhere_.end()) return 0;
  const auto found = children_.find({thread.uid[0], thread.gid[0]});
  return found == children_.end() ? 0 : found->second.pid();
}

LandlockQuestion::LandlockQuestion(proc::CallList& calls, const Outsiders* outsiders,
                                   const store::ProcessImage& process, const store::Thread& thread)
    : asked_(outsiders != nullptr && outsiders->asks()) {
  const int other = asked_ ? outsiders->of(process, thread) : 0;
  has_call_ = other != 0;
  if (has_call_)
    call_ = calls.add("look out of a Landlock domain", SYS_kcmp,
                      {static_cast<uint64_t>(process.pid), static_cast<uint64_t>(other), KCMP_VM, 0, 0});
}

Result<bool> settle_landlock(int pid) {
  CKPT_TRY_ASSIGN(const UniqueFd pidfd, proc::open_pidfd(pid));
  auto found = proc::is_in_landlock_domain(pid, pidfd.get());
  if (!found && found.error().code == Code::kNotFound) return std::move(found).error();
  if (!found) return false;
  if (*found) return fail(Code::kUnsupported, "process " + proc::describe_pid(pid), kLandlock);
  return true;
}

}  // namespace ckpt::capture
