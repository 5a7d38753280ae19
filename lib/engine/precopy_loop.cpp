#include "lib/engine/precopy_loop.h"

#include <algorithm>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/trace.h"
#include "lib/proc/brief_stop.h"
#include "lib/proc/frozen_tree.h"
#include "lib/proc/procfs.h"
#include "lib/proc/usage.h"
#include "lib/proc/userfault.h"

namespace ckpt::engine {

Result<void> PrecopyLoop::run() {
  for (auto& [pid, tracee] : tracees_.all()) tracee.usage = proc::read_usage(pid);
  const DumpOptions& options = context_.options;
  const bool none = options.iterations ? *options.iterations == 0 : downtime_.is_short(downtime_.private_bytes(), 0);
  if (none && !tracees_.any_tracked()) return {};
  context_.phase("collect");
  CKPT_TRY(start_tracking(!none));
  if (!precopy_) return {};
  CKPT_TRY(iterate());
  if (context_.stats().iterations.empty()) return {};
  context_.phase("pre-copy");
  CKPT_TRY_ASSIGN(capture::Inventory earlier, tracees_.collect_again());
  image_.keep_numbers(std::move(earlier.image));
  return {};
}

/// Takes up the processes whose writes are tracked, and where iterations are to come (`all`) begins to track the others
/// that have a memory of their own: what is not tracked is copied as a whole in the end.
Result<void> PrecopyLoop::start_tracking(bool all) {
  CKPT_TRY(image_.number_spaces(tracees_.running().image));
  if (all && context_.runs_on()) tracees_.spawn_daemons();
  if (all) tracees_.take_over_tracking(image_.parent_id(), true);
  capture::Precopy precopy(image_.writer(), context_.copy_options());
  for (const capture::Member& member : tracees_.members()) CKPT_TRY(add(member, all, precopy));
  if (!precopy.empty()) precopy_.emplace(std::move(precopy));
  return {};
}

Result<void> PrecopyLoop::add(const capture::Member& member, bool all, capture::Precopy& precopy) {
  const capture::Inventory& running = tracees_.running();
  const int index = running.find(member.entry.pid);
  if (index < 0 || member.entry.zombie) return {};
  const store::ProcessImage& image = running.image.processes[static_cast<size_t>(index)];
  Tracee& tracee = tracees_.of(member);
  if (image.memory_of >= 0 || tracee.has_pinned_pages || !tracee.gadgets) return {};
  const bool tracked = tracee.tracked();
  if (all && !tracee.userfault) CKPT_TRY(make_tracker(member, tracee));
  if (!tracee.userfault) return {};
  auto added = precopy.add(tracee.pid, image.space, tracee.userfault.get(), tracked,
                           {image.maps, tracees_.collected_at_us()});
  if (added) return {};
  const bool gone = added.error().code == Code::kNotFound && tracee.pid != context_.options.pid;
  if (!gone && added.error().code != Code::kUnsupported) return added;
  tracee.userfault.reset();
  tracee.tracking = Tracking::kNone;
  return {};
}

Result<void> PrecopyLoop::make_tracker(const capture::Member& member, Tracee& tracee) {
  auto stopped = proc::stop_briefly(tracee.pid, *tracee.gadgets, "frozen to begin tracking",
                                    [&](proc::BorrowedThread& thread) -> Result<void> {
                                      auto made = proc::make_write_tracker(thread, member.pidfd.get());
                                      if (made)
                                        tracee.userfault = std::move(*made);
                                      else if (made.error().code == Code::kNotFound)
                                        return std::move(made).error();
                                      return {};
                                    });
  if (!stopped && tracee.pid != context_.options.pid && proc::has_ended(tracee.pid)) return {};
  CKPT_TRY_ASSIGN(uint64_t us, std::move(stopped));
  context_.stats().stops_us += us;
  if (!tracee.userfault && tracee.pid == context_.options.pid)
    context_.progress.note("writes cannot be tracked on this kernel: nothing is pre-copied");
  return {};
}

/// All threads have been stopped once: no system call goes on that had begun before, nor a request of an
/// io_uring or an AIO context.
Result<void> PrecopyLoop::barrier() {
  const DumpOptions& options = context_.options;
  CKPT_TRY_ASSIGN(proc::FrozenTree tree,
                  proc::FrozenTree::freeze(options.pid, options.freeze_timeout_us, context_.cancel));
  CKPT_TRY_ASSIGN(const std::vector<int> in_flight, tracees_.drain_requests(tree, tracees_.running()));
  tree.release();
  for (int pid : in_flight) {
    if (has(pid))
      context_.progress.note(
          fmt::format("requests of an io_uring or an AIO context of process {} do not end: nothing of it is "
                      "pre-copied",
                      pid));
    precopy_->leave_out(pid);
  }
  const uint64_t now = monotonic_us();
  context_.stats().stops_us += now - tree.frozen_at_us();
  trace::interval(trace::Row::kTarget, "frozen between iterations", tree.frozen_at_us(), now);
  return {};
}

/// What the first iteration would copy where nothing is known of earlier writes.
uint64_t PrecopyLoop::all_bytes() const {
  uint64_t pages = 0;
  for (const auto& [pid, tracee] : tracees_.all()) {
    if (has(pid)) pages += proc::read_private_pages(pid);
  }
  return pages * store::kPageSize;
}

/// Until the rest can be copied within the goal, or does not shrink any more.
Result<void> PrecopyLoop::iterate() {
  const DumpOptions& options = context_.options;
  const std::vector<store::CaptureIteration>& done = context_.stats().iterations;
  const unsigned most = options.iterations.value_or(options.max_iterations);
  uint64_t last = 0;
  for (;;) {
    CKPT_TRY(context_.cancel.check());
    if (done.empty() && !tracees_.any_tracked()) {
      dirty_ = {all_bytes(), 0};  // which no scan has to find out
    } else {
      CKPT_TRY_ASSIGN(dirty_, precopy_->dirty());
      scanned_at_us_ = monotonic_us();
    }
    if (done.size() >= most) return {};
    if (!options.iterations) {
      if (downtime_.is_short(dirty_.bytes, dirty_.scan_us)) return {};
      if (!done.empty() && dirty_.bytes > last / 4 * 3) return {};
    }
    last = dirty_.bytes;
    CKPT_TRY(iteration());
  }
}

Result<void> PrecopyLoop::iteration() {
  context_.progress.begin("pre-copy", dirty_.bytes);
  last_began_us_ = monotonic_us();
  CKPT_TRY_ASSIGN(store::CaptureIteration copied, precopy_->iterate([this] { return barrier(); }));
  context_.stats().iterations.push_back(copied);
  downtime_.observe(copied.pages * store::kPageSize, copied.us);
  for (auto& [pid, tracee] : tracees_.all()) tracee.tracking = has(pid) ? Tracking::kSinceIteration : Tracking::kNone;
  return {};
}

/// Twice what is expected: they go on writing as they did from the begin of the last iteration to the scan after it.
uint64_t PrecopyLoop::written_since_scan() const {
  if (scanned_at_us_ == 0) return 0;
  const auto wrote_us = static_cast<double>(std::max<uint64_t>(scanned_at_us_ - last_began_us_, 1));
  const auto since_us = static_cast<double>(monotonic_us() - scanned_at_us_);
  constexpr double kMost = 1e18;
  return static_cast<uint64_t>(std::min(2 * static_cast<double>(dirty_.bytes) * since_us / wrote_us, kMost));
}

Result<void> PrecopyLoop::catch_up() {
  const DumpOptions& options = context_.options;
  if (!precopy_ || precopy_->empty() || options.iterations) return {};
  if (context_.stats().iterations.size() >= options.max_iterations) return {};
  if (downtime_.is_short(dirty_.bytes + written_since_scan(), dirty_.scan_us)) return {};
  const uint64_t expected = dirty_.bytes;
  CKPT_TRY_ASSIGN(dirty_, precopy_->dirty());
  if (dirty_.bytes <= expected + expected / 4 || downtime_.is_short(dirty_.bytes, dirty_.scan_us)) return {};
  context_.phase("prepare");
  CKPT_TRY(iteration());
  context_.phase("pre-copy");
  return {};
}

const std::vector<proc::PageRegion>& PrecopyLoop::missed(int pid) const {
  static const std::vector<proc::PageRegion> kNone;
  return precopy_ ? precopy_->missed(pid) : kNone;
}

}  // namespace ckpt::engine
