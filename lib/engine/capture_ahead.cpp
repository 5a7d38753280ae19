// What a capture does before anything stands still: rounds of copying ahead while they pay, and the choice of how the
// rest is copied. Predictions are rough; a wrong one costs time, never correctness.
#include <sys/stat.h>

#include <algorithm>

#include "lib/base/text.h"
#include "lib/base/trace.h"
#include "lib/engine/capture.h"
#include "lib/memory/spaces.h"
#include "lib/proc/brief_stop.h"
#include "lib/proc/host.h"
#include "lib/proc/userfault.h"

namespace ckpt::engine {

namespace {

// Seen on two cores of a virtual machine (kernel 6.18); tests/bench/process measures them anew.
constexpr uint64_t kReadRate = 1500;         ///< bytes a microsecond that one worker reads, of pages here and there
constexpr uint64_t kForkUsPerMib = 28;       ///< copying page tables, and the protection of both copies
constexpr uint64_t kForkUs = 400;            ///< with the stop that ends it
constexpr uint64_t kForkNsPerMap = 2500;     ///< a VMA and its place in the tree of them
constexpr uint64_t kProcessUs = 1000, kThreadUs = 40, kMapUs = 1, kDescriptorUs = 15;  ///< describing them
constexpr uint64_t kMib = uint64_t{1} << 20;

}  // namespace

/// Private memory that the processes hold, swapped out or not.
uint64_t Capture::private_bytes() const {
  uint64_t pages = 0;
  for (const store::ProcessImage& image : before_.image.processes) {
    if (!image.zombie && image.memory_of < 0) pages += proc::read_private_pages(image.pid);
  }
  return pages * store::kPageSize;
}

/// The part of it that rounds would copy.
uint64_t Capture::bytes_ahead() const {
  uint64_t pages = 0;
  for (const auto& [pid, process] : subjects_) {
    if (ahead_->has(pid)) pages += proc::read_private_pages(pid);
  }
  return pages * store::kPageSize;
}

uint64_t Capture::fork_us() const {
  uint64_t maps = 0;
  for (const store::ProcessImage& image : before_.image.processes) maps += image.maps.size();
  return kForkUs + private_bytes() / kMib * kForkUsPerMib + maps * kForkNsPerMap / 1000;
}

uint64_t Capture::contents_bytes() const {
  uint64_t out = 0;
  for (const store::SharedMemory& memory : before_.image.shared_memory) out += memory.size;
  for (const store::FileIdentity& file : before_.image.files) {
    if (file.deleted && S_ISREG(file.mode) && file.other_name.empty()) out += file.size;
  }
  return out;
}

uint64_t Capture::copying_us(uint64_t bytes) const {
  return bytes / kReadRate / WorkerPool::threads_for(options_.workers);
}

/// True when the stop is short enough with so much private memory to copy, or that is the smaller part of it and not
/// much.
bool Capture::rounds_are_done(uint64_t bytes, uint64_t scan_us) const {
  uint64_t others = scan_us / WorkerPool::threads_for(options_.workers) + copying_us(contents_bytes()) +
                    before_.image.descriptors.size() * kDescriptorUs;
  for (const store::ProcessImage& image : before_.image.processes)
    others += kProcessUs + image.threads.size() * kThreadUs + image.maps.size() * kMapUs;
  const uint64_t copying = copying_us(bytes);
  return others + copying <= options_.downtime_goal_us || copying <= std::min(others, 2 * options_.downtime_goal_us);
}

Result<void> Capture::copy_ahead() {
  for (auto& [pid, process] : subjects_) process.usage = proc::read_usage(pid);
  const bool none = options_.rounds ? *options_.rounds == 0 : rounds_are_done(private_bytes(), 0);
  if (none && !any_tracked()) return {};
  phase("look");
  CKPT_TRY(start_tracking(!none));
  if (!ahead_) return {};
  CKPT_TRY(run_rounds());
  if (manifest_.stats.rounds.empty()) return {};
  phase("copy ahead");
  // The tree has gone on meanwhile.
  constexpr uint64_t kMomentUs = 200'000;
  const bool just_now = monotonic_us() - looked_at_us_ < kMomentUs;
  capture::Inventory then = std::move(before_);
  for (store::ProcessImage& process : then.image.processes) process.maps = {};  // the next look asks `then.vmas`
  numbered_ = then.image;
  CKPT_TRY(look_first(just_now ? &then : nullptr));
  return lock_processes();
}

/// Takes up the processes whose writes are tracked, and where rounds are to come begins to track the others that have a
/// memory of their own: what is not tracked is copied as a whole in the end.
Result<void> Capture::start_tracking(bool all) {
  CKPT_TRY(capture::number_spaces(before_.image, earlier_trees()));
  if (all && runs_on_ && !keeps_tracking_) {
    keeps_tracking_ = true;
    spawn_keepers();
  }
  if (all) take_over_tracking(true);
  capture::Precopy ahead(*writer_, copy_options());
  for (const capture::Member& member : members_) {
    const int index = before_.find(member.entry.pid);
    if (index < 0 || member.entry.zombie) continue;
    const store::ProcessImage& image = before_.image.processes[static_cast<size_t>(index)];
    Subject& process = subject(member);
    if (image.memory_of >= 0 || process.pinned || !process.has_gadgets) continue;
    const bool tracked = process.tracked && process.userfault;
    if (all && !process.userfault) CKPT_TRY(make_running_tracker(member, process));
    if (!process.userfault) continue;
    auto added = ahead.add(process.pid, image.space, process.userfault.get(), tracked, {image.maps, looked_at_us_});
    const bool gone = !added && added.error().code == Code::kNotFound && process.pid != options_.pid;
    if (!added && !gone && added.error().code != Code::kUnsupported) return added;
    if (!added) process.userfault.reset();
    process.tracked = tracked && added;
  }
  if (!ahead.empty()) ahead_.emplace(std::move(ahead));
  return {};
}

Result<void> Capture::make_running_tracker(const capture::Member& member, Subject& process) {
  auto stood = proc::stop_briefly(process.pid, process.gadgets, "frozen to begin tracking",
                                  [&](proc::BorrowedThread& thread) -> Result<void> {
                                    auto made = proc::make_write_tracker(thread, member.pidfd.get());
                                    if (made)
                                      process.userfault = std::move(*made);
                                    else if (made.error().code == Code::kNotFound)
                                      return std::move(made).error();
                                    return {};
                                  });
  if (!stood && process.pid != options_.pid && proc::has_ended(process.pid)) return {};
  CKPT_TRY_ASSIGN(uint64_t us, std::move(stood));
  manifest_.stats.stops_us += us;
  if (!process.userfault && process.pid == options_.pid)
    progress_.note("writes cannot be tracked on this kernel: nothing is copied ahead");
  return {};
}

/// All threads have been stopped once: no system call goes on that had begun before.
Result<void> Capture::barrier() {
  CKPT_TRY_ASSIGN(proc::FrozenTree tree, proc::FrozenTree::freeze(options_.pid, options_.freeze_timeout_us, cancel_));
  tree.release();
  const uint64_t now = monotonic_us();
  manifest_.stats.stops_us += now - tree.frozen_at_us();
  trace::interval(trace::Row::kTarget, "frozen between rounds", tree.frozen_at_us(), now);
  return {};
}

/// Rounds until the rest can be copied within the goal, or does not shrink any more.
Result<void> Capture::run_rounds() {
  std::vector<store::CaptureRound>& rounds = manifest_.stats.rounds;
  const unsigned most = options_.rounds.value_or(options_.max_rounds);
  uint64_t last = 0;
  for (;;) {
    CKPT_TRY(cancel_.check());
    if (rounds.empty() && !any_tracked()) {
      dirty_ = {bytes_ahead(), 0};  // all of it, which no scan has to find out
    } else {
      CKPT_TRY_ASSIGN(dirty_, ahead_->dirty());
      scanned_at_us_ = monotonic_us();
    }
    if (rounds.size() >= most) return {};
    if (!options_.rounds) {
      if (rounds_are_done(dirty_.bytes, dirty_.scan_us)) return {};
      if (!rounds.empty() && dirty_.bytes > last / 4 * 3) return {};
    }
    last = dirty_.bytes;
    CKPT_TRY(run_round());
  }
}

Result<void> Capture::run_round() {
  progress_.begin("copy ahead", dirty_.bytes);
  last_round_us_ = monotonic_us();
  CKPT_TRY_ASSIGN(store::CaptureRound round, ahead_->round([this] { return barrier(); }));
  manifest_.stats.rounds.push_back(round);
  for (auto& [pid, process] : subjects_) process.tracked = ahead_->has(pid);
  return {};
}

/// Twice what is expected: they go on writing as they did from the begin of the last round to the scan after it.
uint64_t Capture::written_since_scan() const {
  if (scanned_at_us_ == 0) return 0;
  const auto wrote_us = static_cast<double>(std::max<uint64_t>(scanned_at_us_ - last_round_us_, 1));
  const auto since_us = static_cast<double>(monotonic_us() - scanned_at_us_);
  constexpr double kMost = 1e18;
  return static_cast<uint64_t>(std::min(2 * static_cast<double>(dirty_.bytes) * since_us / wrote_us, kMost));
}

/// Preparing the stop takes time too, on a busy machine much of it: what the processes wrote meanwhile is copied ahead
/// once more where it has become much.
Result<void> Capture::catch_up() {
  if (!ahead_ || ahead_->empty() || options_.rounds || manifest_.stats.rounds.size() >= options_.max_rounds) return {};
  if (rounds_are_done(dirty_.bytes + written_since_scan(), dirty_.scan_us)) return {};
  const uint64_t expected = dirty_.bytes;
  CKPT_TRY_ASSIGN(dirty_, ahead_->dirty());
  if (dirty_.bytes <= expected + expected / 4 || rounds_are_done(dirty_.bytes, dirty_.scan_us)) return {};
  phase("prepare");
  CKPT_TRY(run_round());
  phase("copy ahead");
  return {};
}

/// A snapshot or a copy, whichever keeps the tree still for less; and room for what will be copied, faulted in
/// beforehand.
Result<void> Capture::prepare_window() {
  uint64_t bytes = dirty_.bytes;
  for (auto& [pid, process] : subjects_) {
    const int index = before_.find(pid);
    if (index < 0 || before_.image.processes[static_cast<size_t>(index)].memory_of >= 0) continue;
    process.private_pages = proc::read_private_pages(pid);
    if (!ahead_ || !ahead_->has(pid)) bytes += process.private_pages * store::kPageSize;
  }
  const uint64_t limit = options_.max_memory > 64 * kMib ? options_.max_memory - 64 * kMib : 0;
  // Past the limit the copy goes through to the image while the tree stands still.
  const uint64_t copy_us = copying_us(bytes) * (bytes > limit ? 4 : 1);
  wants_snapshot_ = runs_on_ && fork_us() < copy_us;
  const uint64_t stage = (wants_snapshot_ ? 0 : bytes + bytes / 4) + contents_bytes();
  if (stage <= limit)
    staging_ =
        capture::Staging::make(std::min(stage + kMib, limit), limit);  // else it would not fit, and is dear to make
  advice_watch_.emplace(1);  // its thread is there before the frozen window ends
  constexpr size_t kWorthThreads = 4;
  if (members_.size() >= kWorthThreads || private_bytes() > 8 * kMib) make_helpers(options_.workers, pool_);
  return {};
}

}  // namespace ckpt::engine
