#include "lib/proc/frozen_tree.h"

#include <algorithm>
#include <csignal>
#include <limits>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/proc/procfs.h"

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

namespace {

/// The first process of a further pid namespace ends once everything in it has been waited for: after all others, and
/// the deeper it is the earlier.
size_t turn_of(int pid) {
  auto status = read_status(pid, pid);
  const bool is_first = status && status->ns_pids.size() > 1 && status->ns_pids.back() == 1;
  return is_first ? std::numeric_limits<size_t>::max() - status->ns_pids.size() : 0;
}

/// Of the first process of a further pid namespace, that was told to end. One on its way out waits for those who
/// are to reap what has ended in there, and they may be waiting for ckpt.
Result<void> await_first(FrozenProcess& process) {
  constexpr uint64_t kPatienceUs = 1'000'000;
  for (auto tid = process.threads().rbegin(); tid != process.threads().rend(); ++tid) {
    auto stop = wait_stop(*tid, kPatienceUs);
    while (stop && stop->kind != StopKind::kEnded) {
      (void)resume(*tid, Resume::kRun);
      stop = wait_stop(*tid, kPatienceUs);
    }
    if (stop || stop.error().code != Code::kBusy) continue;
    auto stat = read_thread_stat(process.pid(), *tid);
    if (stat && !stat->is_ending()) return process.kill();
  }
  return {};
}

}  // namespace

Result<void> FrozenTree::kill() {
  Result<void> first;
  std::vector<std::pair<size_t, FrozenProcess*>> in_turn;
  for (auto& [pid, process] : processes_) in_turn.emplace_back(turn_of(pid), &process);
  std::stable_sort(in_turn.begin(), in_turn.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [pid, process] : processes_) {
    if (::kill(pid, SIGKILL) != 0 && first) first = sys_error(describe_pid(pid), "cannot end");
  }
  for (auto& [turn, process] : in_turn) {
    auto ended = turn == 0 ? process->kill() : await_first(*process);
    if (!ended && ended.error().code != Code::kNotFound && first) first = std::move(ended);
  }
  processes_.clear();
  return first;
}

}  // namespace ckpt::proc
