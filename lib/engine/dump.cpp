#include "lib/engine/dump.h"

#include <algorithm>

#include "lib/engine/capture.h"
#include "lib/engine/check.h"
#include "lib/engine/estimate.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

/// GPUs are given back while their processes stand still as well as later: what `devices_` holds says which.
Result<DumpReport> Capture::run() {
  auto taken = take_image();
  if (taken) return taken;
  auto given_back = give_devices_back();
  if (given_back) return taken;
  return Error(std::move(given_back).error()).with_cause(taken.error().text());
}

Result<DumpReport> Capture::take_image() {
  const bool pre_dump = verb_ == Verb::kPreDump;
  runs_on_ = pre_dump || options_.after == DumpOptions::After::kLeaveRunning;
  ends_target_ = !runs_on_ && options_.after == DumpOptions::After::kEnd;
  CKPT_TRY(check_end());
  CKPT_TRY(look_first());
  CKPT_TRY(lock_processes());
  CKPT_TRY(clear_leftovers());
  CKPT_TRY(choose_parent());
  CKPT_TRY(open_image());
  CKPT_TRY(act("pre-dump"));
  keeps_tracking_ = pre_dump || (runs_on_ && any_tracked());
  if (keeps_tracking_) spawn_keepers();
  take_over_tracking(keeps_tracking_);
  CKPT_TRY(copy_ahead());
  CKPT_TRY(copy_devices_ahead());
  CKPT_TRY(prepare_window());
  CKPT_TRY(catch_up());
  if (ends_target_ && options_.sockets.tcp_established) CKPT_TRY(connections_.hold(before_.connections));
  CKPT_TRY(take_moment(pre_dump ? OwnedMemory::Copy::kBehind : OwnedMemory::Copy::kNow));
  if (pre_dump) CKPT_TRY(copy_devices_behind());
  CKPT_TRY(copy_rest());
  CKPT_TRY(commit());
  return finish_tree();
}

Result<void> Capture::check_end() const {
  const bool ends = verb_ == Verb::kDump && options_.after == DumpOptions::After::kEnd;
  if (!ends || options_.force || may_restore()) return {};
  return Error(Code::kPermission, proc::describe_pid(options_.pid),
               "this user could not restore it here, so it is not ended")
      .with_hint(
          "-R leaves it running, -s stopped; --force ends it all the same, for somebody with CAP_CHECKPOINT_RESTORE to "
          "restore");
}

/// What the image is an image of.
Result<void> Capture::take_moment(OwnedMemory::Copy copy) {
  CKPT_TRY(stop_devices(copy));
  CKPT_TRY(stop_at_a_good_moment());
  CKPT_TRY(describe());
  CKPT_TRY(make_copies());
  CKPT_TRY(scan());
  CKPT_TRY(copy_frozen());
  if (runs_on_) return let_run();
  end_of_frozen_window();
  return {};
}

namespace {

/// True where every thread has ended or is about to.
bool is_ending(int pid) {
  auto tids = proc::read_threads(pid);
  if (!tids) return true;
  return std::all_of(tids->begin(), tids->end(), [&](int tid) {
    auto stat = proc::read_thread_stat(pid, tid);
    return !stat || stat->is_ending();
  });
}

/// Every failure here lets the target go before it is reported: the destructors of Capture have run by then. Whatever a
/// process on its way out makes fail (it has no memory, no first thread any more), its end is the reason to give.
template <class T>
Result<T> with_target_state(int pid, Result<T> result) {
  if (result || !result.error().target_state.empty()) return result;
  Error error = std::move(result).error();
  if (!is_ending(pid)) return std::move(error).with_target("running, as it was");
  if (error.code != Code::kNotFound && error.code != Code::kInterrupted) {
    std::string consequence = error.text();
    error = Error(Code::kNotFound, "process " + std::to_string(pid), "has ended").with_cause(std::move(consequence));
  }
  return std::move(error).with_target("none: it has ended, or was never there");
}

}  // namespace

Result<DumpReport> pre_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  return with_target_state(options.pid,
                           [&] { return Capture(Capture::Verb::kPreDump, options, progress, cancel).run(); }());
}

Result<DumpReport> dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  return with_target_state(options.pid,
                           [&] { return Capture(Capture::Verb::kDump, options, progress, cancel).run(); }());
}

Result<DumpEstimate> estimate_pre_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  return with_target_state(options.pid, Capture(Capture::Verb::kPreDump, options, progress, cancel).estimate());
}

Result<DumpEstimate> estimate_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  return with_target_state(options.pid, Capture(Capture::Verb::kDump, options, progress, cancel).estimate());
}

}  // namespace ckpt::engine
