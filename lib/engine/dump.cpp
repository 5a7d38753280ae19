#include "lib/engine/dump.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "lib/engine/capture.h"
#include "lib/engine/estimate.h"
#include "lib/engine/finish.h"
#include "lib/engine/freeze_window.h"
#include "lib/engine/safe_points.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

class Dump {
 public:
  Dump(CaptureContext::Verb verb, const DumpOptions& options, ProgressSink& progress, const Cancel& cancel)
      : capture_(verb, options, progress, cancel) {}
  Dump(const Dump&) = delete;
  Dump& operator=(const Dump&) = delete;
  ~Dump() { (void)give_back(); }

  Result<DumpReport> run();
  /// After a failure: what validation has found, in words. Empty: that is not why.
  const std::string& differs() const { return capture_.differs; }
  uint64_t pages_validated() const { return capture_.validated.pages; }

 private:
  Result<DumpReport> take_image();
  Result<void> open_image();
  Result<void> refuse_outside(const std::vector<ConnectionEnd>& ends, const std::vector<size_t>& outside) const;
  Result<void> look_at_job();
  Result<void> meet_frozen();
  Result<void> pre_copy();
  Result<void> take_window(OwnedMemory::Copy copy);
  Result<void> copy_devices_deferred();
  Result<void> give_back();
  bool may_wait();

  Capture capture_;
  Together* const together_ = capture_.context.options.together;
  std::optional<FreezeWindow> window_;
  std::unique_ptr<SafePoints> safe_points_;
};

/// A GPU that cannot be given back is told of before what made the capture fail.
Result<DumpReport> Dump::run() {
  auto taken = take_image();
  if (taken) return taken;
  auto given_back = give_back();
  if (given_back) return taken;
  return Error(std::move(given_back).error()).with_cause(taken.error().text());
}

/// Wherever it stands. Does nothing where nothing is held.
Result<void> Dump::give_back() {
  if (window_) return window_->let_go();
  CKPT_TRY(capture_.devices.give_back(nullptr));
  return capture_.devices.attach();
}

Result<DumpReport> Dump::take_image() {
  const bool pre_dump = capture_.context.verb == CaptureContext::Verb::kPreDump;
  CKPT_TRY(capture_.context.check_end());
  CKPT_TRY(open_image());
  CKPT_TRY(pre_copy());
  // A job does not stop twice, and a second stop would be at no safe point.
  const bool defers = pre_dump && together_ == nullptr && !capture_.context.options.safe_points.wait;
  CKPT_TRY(take_window(defers ? OwnedMemory::Copy::kDeferred : OwnedMemory::Copy::kNow));
  if (defers) CKPT_TRY(copy_devices_deferred());
  Finish finish(capture_, *window_);
  if (together_ != nullptr) CKPT_TRY(together_->await_turn(may_wait()));
  CKPT_TRY(finish.copy_deferred());
  CKPT_TRY(finish.commit());
  return finish.end_tree();
}

/// What snapshots cost is watched over while they are copied, and not before.
bool Dump::may_wait() {
  const auto& states = window_->states();
  const auto has_snapshot = [](const auto& state) { return state.second.snapshot.has_value(); };
  return capture_.context.options.max_cow == 0 || std::none_of(states.begin(), states.end(), has_snapshot);
}

/// Nothing is stopped yet, but where something of another ckpt is to be cleared.
Result<void> Dump::open_image() {
  CaptureContext& context = capture_.context;
  Tracees& tracees = capture_.tracees;
  NewImage& image = capture_.image;
  CKPT_TRY(tracees.collect());
  CKPT_TRY(tracees.lock());
  CKPT_TRY(tracees.clear_leftovers());
  if (together_ != nullptr) CKPT_TRY(look_at_job());
  CKPT_TRY(capture_.devices.prepare());
  CKPT_TRY(image.choose_parent(tracees));
  CKPT_TRY(image.open());
  CKPT_TRY(context.act("pre-dump"));
  const bool goes_on_from =
      context.verb == CaptureContext::Verb::kPreDump || (context.runs_on() && tracees.any_tracked());
  const bool tracks = goes_on_from && (!context.options.publish || !context.options.published_as.empty());
  if (tracks) tracees.spawn_daemons();
  tracees.take_over_tracking(image.parent_id(), tracks);
  return {};
}

/// Those to others than members are subject to --tcp-established, as without a job.
Result<void> Dump::refuse_outside(const std::vector<ConnectionEnd>& ends, const std::vector<size_t>& outside) const {
  const DumpOptions& options = capture_.context.options;
  if (outside.empty() || options.sockets.tcp_established) return {};
  std::vector<capture::Blocker> blockers;
  for (size_t at : outside) {
    blockers.push_back(
        {proc::describe_pid(options.pid),
         "a TCP connection, " + ends[at].local + " to " + ends[at].remote +
             ", of which no member has the other end (one that is just being opened or closed has one end, too)",
         "--tcp-established"});
  }
  return capture::blocked_error(options.pid, blockers);
}

/// While nothing has been touched.
Result<void> Dump::look_at_job() {
  std::vector<int> processes;
  for (const capture::Member& member : capture_.tracees.members()) processes.push_back(member.entry.pid);
  CKPT_TRY(together_->place(processes));
  const std::string network = own_network();
  std::vector<ConnectionEnd> ends;
  bool again = false;
  auto look = [&]() -> Result<std::vector<ConnectionEnd>> {
    if (std::exchange(again, true)) CKPT_TRY(capture_.tracees.collect_again());
    ends = connection_ends(capture_.tracees.running().image.sockets, network);
    return ends;
  };
  CKPT_TRY_ASSIGN(const std::vector<size_t> outside, together_->find_outside(look));
  return refuse_outside(ends, outside);
}

/// All trees of the job stand still from here on, and their queues have been taken after the last packet.
Result<void> Dump::meet_frozen() {
  const auto ends = connection_ends(window_->collected().image.sockets, own_network());
  CKPT_TRY_ASSIGN(const std::vector<size_t> outside, together_->frozen(ends));
  capture_.context.phase("meet");
  return refuse_outside(ends, outside);
}

/// The tree goes on.
Result<void> Dump::pre_copy() {
  CaptureContext& context = capture_.context;
  Tracees& tracees = capture_.tracees;
  CKPT_TRY(capture_.precopy.run());
  CKPT_TRY(capture_.devices.pre_copy(tracees.running().image, capture_.image));
  if (context.options.safe_points.wait) {
    CKPT_TRY_ASSIGN(safe_points_, SafePoints::find(tracees.members()));
    CKPT_TRY(safe_points_->reach(context.options.safe_points, context.options.freeze_timeout_us, together_,
                                 context.cancel));
    context.phase("safe point");
  }
  if (together_ != nullptr) CKPT_TRY(together_->ready());
  capture_.plan.emplace(context, tracees, capture_.precopy);
  CKPT_TRY(capture_.precopy.catch_up());
  if (together_ != nullptr) CKPT_TRY(together_->prepared());
  if (context.holds_connections()) CKPT_TRY(capture_.connections.hold(tracees.running().connections));
  return {};
}

/// The instant that the image is of.
Result<void> Dump::take_window(OwnedMemory::Copy copy) {
  const InAHurry hurry(capture_.context.options);
  window_.emplace(capture_);
  CKPT_TRY(capture_.devices.hold(copy));
  CKPT_TRY(window_->freeze());
  if (auto held = std::move(safe_points_)) CKPT_TRY(held->leave_frozen());
  if (together_ != nullptr) CKPT_TRY(meet_frozen());
  CKPT_TRY(window_->describe());
  CKPT_TRY(window_->make_copies());
  CKPT_TRY(window_->scan());
  CKPT_TRY(window_->copy());
  CKPT_TRY(window_->sample());
  const bool meets = together_ != nullptr && capture_.context.runs_on();
  if (meets) {
    CKPT_TRY(together_->captured());
    capture_.context.phase("meet");
  }
  CKPT_TRY(window_->end());
  if (meets) CKPT_TRY(together_->running());
  window_->ask_later();
  return {};
}

/// Device memory, while it is written. Where it could not be kept as it was, the tree is frozen once more and all of it
/// taken anew: little is left to copy by then.
Result<void> Dump::copy_devices_deferred() {
  CKPT_TRY_ASSIGN(const bool kept, capture_.devices.copy_deferred());
  if (kept) return {};
  CaptureContext& context = capture_.context;
  context.progress.note("device memory was written in a way that could not be foreseen: the image is of a second stop");
  CKPT_TRY(window_->finish_snapshots());
  context.stats().stops_us += context.stats().frozen_us;
  return take_window(OwnedMemory::Copy::kNow);
}

/// True where every thread has ended or is about to.
bool is_ending(int pid) {
  auto tids = proc::read_threads(pid);
  if (!tids) return true;
  return std::all_of(tids->begin(), tids->end(), [&](int tid) {
    auto stat = proc::read_thread_stat(pid, tid);
    return !stat || stat->is_ending();
  });
}

/// Every failure here lets the target go before it is reported: the destructors of Dump have run by then. Whatever a
/// process on its way out makes fail (it has no memory, no first thread any more), its end is the reason to give.
template <class T>
Result<T> with_target_state(int pid, Result<T> result) {
  if (result) return result;
  // Of a process on its way out the kernel tells things that would stand in the way of a dump.
  const bool is_refused = result.error().code == Code::kUnsupported && is_ending(pid);
  if (!result.error().target_state.empty() && !is_refused) return result;
  Error error = std::move(result).error();
  if (!is_ending(pid)) return std::move(error).with_target("running, as it was");
  if (error.code != Code::kNotFound && error.code != Code::kInterrupted) {
    std::string consequence = error.text();
    error = Error(Code::kNotFound, "process " + std::to_string(pid), "has ended").with_cause(std::move(consequence));
  }
  return std::move(error).with_target("none: it has ended, or was never there");
}

/// Where validation finds that the image is not what the tree was, nothing is left of it, the tree goes on, and a full
/// one is taken that relies on no write tracking. A job's members would have to agree on that: there it is the error.
Result<DumpReport> capture_tree(CaptureContext::Verb verb, const DumpOptions& options, ProgressSink& progress,
                                const Cancel& cancel) {
  std::string why;
  uint64_t validated = 0;
  {
    Dump first(verb, options, progress, cancel);
    auto taken = first.run();
    why = first.differs(), validated = first.pages_validated();
    const bool is_why = !taken && taken.error().code == Code::kMismatch && !why.empty();
    if (!is_why || options.together != nullptr) return taken;
  }
  progress.note(why + ": the image is taken anew, a full one that relies on no write tracking");
  DumpOptions full = options;
  full.prev.clear();
  full.no_prev = true, full.iterations = 0, full.validate_sample = 0;
  // May be called before `capture_tree` has it back.
  if (options.before_common_end) {
    full.before_common_end = [&](const DumpReport& report) {
      DumpReport told = report;
      told.pages_validated = validated, told.fell_back = why;
      options.before_common_end(told);
    };
  }
  Dump second(verb, full, progress, cancel);
  CKPT_TRY_ASSIGN(DumpReport out, second.run());
  out.pages_validated = validated, out.fell_back = std::move(why);
  return out;
}

}  // namespace

Result<DumpReport> pre_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  return with_target_state(options.pid, capture_tree(CaptureContext::Verb::kPreDump, options, progress, cancel));
}

Result<DumpReport> dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  return with_target_state(options.pid, capture_tree(CaptureContext::Verb::kDump, options, progress, cancel));
}

Result<DumpEstimate> estimate_pre_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  Capture capture(CaptureContext::Verb::kPreDump, options, progress, cancel);
  return with_target_state(options.pid, estimate(capture));
}

Result<DumpEstimate> estimate_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  Capture capture(CaptureContext::Verb::kDump, options, progress, cancel);
  return with_target_state(options.pid, estimate(capture));
}

}  // namespace ckpt::engine
