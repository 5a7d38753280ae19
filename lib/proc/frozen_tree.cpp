#include "lib/proc/frozen_tree.h"

#include <csignal>

#include "lib/base/clock.h"

namespace ckpt::proc {

Result<FrozenTree> FrozenTree::freeze(int root, uint64_t timeout_us, const Cancel& cancel) {
  FrozenTree out;
  Stopwatch watch;
  out.entries_ = {{root, -1, false}};
  for (bool found = true, first = true; found; first = false) {
    found = false;
    if (!first) {
      CKPT_TRY_ASSIGN(out.entries_, read_tree(root));
    }
    for (const TreeEntry& entry : out.entries_) {
      if (entry.zombie || out.processes_.count(entry.pid) != 0) continue;
      const uint64_t spent = watch.elapsed_us();
      if (spent >= timeout_us)
        return fail(Code::kBusy, describe_pid(root), "its process tree does not stand still in time");
      auto frozen = FrozenProcess::freeze(entry.pid, timeout_us - spent, cancel);
      found = true;
      if (!frozen && frozen.error().code == Code::kNotFound && entry.pid != root) continue;  // listed once more
      if (!frozen) return std::move(frozen).error();
      if (out.frozen_at_us_ == 0) out.frozen_at_us_ = frozen->frozen_at_us();
      out.processes_.emplace(entry.pid, std::move(*frozen));
    }
  }
  return out;
}

Result<void> FrozenTree::kill() {
  Result<void> first;
  for (auto& [pid, process] : processes_) {
    if (::kill(pid, SIGKILL) != 0 && first) first = sys_error(describe_pid(pid), "cannot end");
  }
  for (auto& [pid, process] : processes_) {
    if (auto ended = process.kill(); !ended && ended.error().code != Code::kNotFound && first) first = std::move(ended);
  }
  processes_.clear();
  return first;
}

}  // namespace ckpt::proc
