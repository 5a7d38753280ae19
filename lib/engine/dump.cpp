#include "lib/engine/dump.h"

#include <signal.h>

#include <algorithm>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/text.h"
#include "lib/capture/copy.h"
#include "lib/capture/inside.h"
#include "lib/capture/inventory.h"
#include "lib/capture/keeper.h"
#include "lib/capture/page_plan.h"
#include "lib/capture/snapshot.h"
#include "lib/proc/host.h"
#include "lib/proc/userfault.h"

namespace ckpt::engine {

namespace {

using capture::Tracking;

/// Copied pages up to this size wait in memory until the target runs again.
constexpr uint64_t kStagingLimit = uint64_t{192} << 20;

/// One pre-dump or dump, from the first look at the process to the commit of its image. Members are in the order in which
/// they come to be; the destructors let go in the reverse one.
class Capture {
 public:
  Capture(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel)
      : options_(options), progress_(progress), cancel_(cancel) {}

  Result<DumpReport> run_pre_dump();
  Result<DumpReport> run_dump();
  Result<DumpEstimate> estimate();

 private:
  Result<void> look_first();
  Result<void> choose_parent();
  Result<void> open_image();
  void prepare_staging();
  Result<void> freeze();
  Result<void> describe(bool want_snapshot, bool want_tracking);
  Result<void> make_tracker(proc::BorrowedThread& thread);
  Result<void> make_snapshot(proc::BorrowedThread& thread);
  Result<void> plan(bool arm);
  Result<void> copy_frozen(const std::vector<capture::BlockPlan>& blocks);
  Result<void> write_staged(const std::vector<capture::BlockPlan>& blocks);
  void let_run();
  Result<void> commit(const char* kind);
  void keep_tracking();
  Result<void> end_target();
  DumpReport report(std::string target_state);

  void phase(const char* name) { manifest_.stats.phases_us.emplace_back(name, watch_.lap_us()); }
  capture::CopyOptions copy_options() const { return {options_.workers, &progress_, &cancel_}; }

  const DumpOptions& options_;
  ProgressSink& progress_;
  const Cancel& cancel_;

  Stopwatch watch_;
  UniqueFd pidfd_;
  capture::ProcessKey key_;
  capture::Inventory before_;            ///< taken while the process ran
  proc::Gadgets gadgets_;
  std::filesystem::path parent_;
  std::string parent_id_;
  bool tracked_ = false;                 ///< the parent's tracking is armed and ours to use
  std::optional<capture::Keeper> keeper_;
  std::unique_ptr<store::ImageWriter> writer_;
  std::optional<capture::Staging> staging_;
  bool staged_ = false;
  UniqueFd userfault_;
  bool armed_ = false;
  store::Manifest manifest_;
  std::vector<std::vector<std::byte>> xstates_, pipes_;
  capture::PagePlan plan_;
  std::optional<capture::Snapshot> snapshot_;  ///< before frozen_: its end stops the released target once more
  std::optional<proc::FrozenProcess> frozen_;
};

Result<void> Capture::look_first() {
  CKPT_TRY_ASSIGN(pidfd_, proc::open_pidfd(options_.pid));
  CKPT_TRY_ASSIGN(proc::Stat stat, proc::read_stat(options_.pid));
  key_ = {options_.pid, stat.start_time};
  CKPT_TRY_ASSIGN(before_, capture::take_inventory(options_.pid, pidfd_.get(), {options_.shell_job, nullptr}));
  if (!before_.blockers.empty()) return capture::blocked_error(options_.pid, before_.blockers);
  CKPT_TRY_ASSIGN(gadgets_, proc::find_gadgets(options_.pid, before_.vmas));
  return {};
}

/// --prev, or the image whose tracking a keeper holds. Tracking that belongs to another image than --prev is of no use.
Result<void> Capture::choose_parent() {
  auto tracked = capture::tracked_image(key_);
  parent_ = options_.prev;
  if (parent_.empty() && !tracked) return {};
  if (parent_.empty()) parent_ = tracked->path;
  auto image = store::ImageReader::open(parent_);
  if (!image && options_.prev.empty()) {
    progress_.note("the image of the last pre-dump (" + parent_.string() + ") cannot be used: " + image.error().text() + "; copying everything");
    parent_.clear();
    return {};
  }
  if (!image) return std::move(image).error();
  const store::Manifest& manifest = (*image)->manifest();
  parent_id_ = manifest.id;
  if (manifest.process.pid != options_.pid) {
    return fail(Code::kUsage, parent_.string(), "is an image of process " + std::to_string(manifest.process.pid) + ", not of " + std::to_string(options_.pid));
  }
  tracked_ = tracked && tracked->id == parent_id_;
  if (!tracked_) progress_.note("no write tracking since " + parent_.string() + ": every page is read and compared");
  return {};
}

Result<void> Capture::open_image() {
  store::ImageWriter::Options options;
  options.force = options_.force, options.compress = options_.compress, options.parent = parent_;
  CKPT_TRY_ASSIGN(writer_, store::ImageWriter::create(options_.dir, options));
  return {};
}

/// Room for what will be copied in the frozen window, faulted in beforehand: a quarter more than is dirty now.
void Capture::prepare_staging() {
  auto pagemap = proc::Pagemap::open(options_.pid);
  if (!pagemap) return;
  std::vector<store::MemoryMap> maps = before_.image.maps;
  auto guess = capture::plan_pages(*pagemap, options_.pid, tracked_ ? Tracking::kUse : Tracking::kNone, maps);
  if (!guess) return;
  uint64_t bytes = guess->pages_data * store::kPageSize;
  staging_ = capture::Staging::make(std::min(bytes + bytes / 4 + (uint64_t{8} << 20), kStagingLimit), kStagingLimit);
}

Result<void> Capture::freeze() {
  phase("prepare");
  // From here on the old tracking is ours alone: re-arming it makes the keeper's word about its image void. What belongs to
  // another image is left with its keeper unless new tracking is about to replace it.
  if (tracked_ || keeper_) {
    auto taken = capture::take_over_tracking(key_);
    tracked_ = tracked_ && taken && taken->image.id == parent_id_;
    if (tracked_) userfault_ = std::move(taken->userfault);
  }
  CKPT_TRY_ASSIGN(proc::FrozenProcess frozen, proc::FrozenProcess::freeze(options_.pid, options_.freeze_timeout_us, cancel_));
  frozen_.emplace(std::move(frozen));
  CKPT_TRY_ASSIGN(proc::Stat stat, proc::read_stat(options_.pid));
  if (stat.start_time != key_.start_time) return fail(Code::kNotFound, "process " + std::to_string(options_.pid), "has ended");
  phase("freeze");
  return {};
}

Result<void> Capture::describe(bool want_snapshot, bool want_tracking) {
  CKPT_TRY_ASSIGN(capture::Inventory now, capture::take_inventory(options_.pid, pidfd_.get(), {options_.shell_job, &before_}));
  if (!now.blockers.empty()) return capture::blocked_error(options_.pid, now.blockers);
  manifest_.process = std::move(now.image);
  pipes_ = std::move(now.pipe_contents);
  phase("inventory");
  if (!proc::still_hold(options_.pid, gadgets_)) {
    CKPT_TRY_ASSIGN(gadgets_, proc::find_gadgets(options_.pid, now.vmas));
  }
  CKPT_TRY_ASSIGN(proc::Scratch scratch, proc::Scratch::map(options_.pid, options_.pid, gadgets_));
  CKPT_TRY(capture::describe_inside(*frozen_, scratch, manifest_.process, xstates_));
  phase("describe");
  if (want_snapshot || want_tracking) {
    CKPT_TRY_ASSIGN(proc::BorrowedThread thread, proc::BorrowedThread::begin(scratch, options_.pid));
    if (want_tracking) CKPT_TRY(make_tracker(thread));
    if (want_snapshot) CKPT_TRY(make_snapshot(thread));
    CKPT_TRY(thread.finish());
    phase("snapshot");
  }
  return scratch.unmap();
}

Result<void> Capture::make_tracker(proc::BorrowedThread& thread) {
  if (!userfault_) {
    auto made = proc::make_write_tracker(thread, pidfd_.get());
    if (!made && made.error().code == Code::kNotFound) return std::move(made).error();
    if (!made) progress_.note("writes cannot be tracked (" + made.error().text() + "): the next dump copies everything");
    if (made) userfault_ = std::move(*made);
  }
  if (!userfault_) return {};
  for (const store::MemoryMap& map : manifest_.process.maps) {
    bool tracked = map.kind == store::MappingKind::kAnonymous || map.kind == store::MappingKind::kPrivateFile;
    // A mapping that refuses reads as written for ever.
    if (tracked) (void)proc::track_range(userfault_.get(), map.start, map.end);
  }
  return {};
}

/// Without the memory for a fork the copy is made while the target stands still: said, not hidden.
Result<void> Capture::make_snapshot(proc::BorrowedThread& thread) {
  auto snapshot = capture::Snapshot::take(thread, options_.pid, gadgets_);
  if (snapshot) {
    snapshot_.emplace(std::move(*snapshot));
    return {};
  }
  if (snapshot.error().code == Code::kNotFound) return std::move(snapshot).error();
  progress_.note("no copy-on-write snapshot (" + snapshot.error().text() + "): the process stands still for the whole copy");
  return {};
}

Result<void> Capture::plan(bool arm) {
  CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(options_.pid));
  if (!pagemap.can_scan()) {
    progress_.note("this kernel cannot tell which pages were written (PAGEMAP_SCAN, 6.7): copying everything");
    tracked_ = false;
    arm = false;
  }
  armed_ = arm && userfault_;
  Tracking tracking = tracked_ ? (armed_ ? Tracking::kUseAndArm : Tracking::kUse) : (armed_ ? Tracking::kArm : Tracking::kNone);
  CKPT_TRY_ASSIGN(plan_, capture::plan_pages(pagemap, options_.pid, tracking, manifest_.process.maps));
  store::CaptureStats& stats = manifest_.stats;
  stats.pages_scanned = plan_.pages_scanned;
  stats.pages_copied = plan_.pages_data;
  stats.bytes_memory = plan_.pages_data * store::kPageSize;
  phase("scan");
  return {};
}

/// Inside the frozen window: into the staging memory if it fits, else straight through to the image.
Result<void> Capture::copy_frozen(const std::vector<capture::BlockPlan>& blocks) {
  staged_ = staging_ && staging_->fits(blocks);
  if (staged_) return staging_->read(options_.pid, blocks, options_.workers);
  return capture::copy_blocks(options_.pid, blocks, *writer_, copy_options());
}

Result<void> Capture::write_staged(const std::vector<capture::BlockPlan>& blocks) {
  if (!staged_) return {};
  return staging_->write(blocks, *writer_, copy_options());
}

void Capture::let_run() {
  frozen_->release();
  manifest_.stats.frozen_us = monotonic_us() - frozen_->frozen_at_us();
}

Result<void> Capture::commit(const char* kind) {
  CKPT_TRY(cancel_.check());
  auto advice = capture::advice_unchanged(options_.pid, before_);
  if (advice && !*advice) return fail(Code::kBusy, proc::describe_pid(options_.pid), "changed the advice on its mappings (madvise, mlock) meanwhile: try again");
  store::ProcessImage& image = manifest_.process;
  for (size_t i = 0; i < image.threads.size(); ++i) {
    CKPT_TRY_ASSIGN(image.threads[i].xstate_offset, writer_->append_xstate(xstates_[i]));
  }
  for (size_t i = 0; i < image.pipes.size(); ++i) {
    CKPT_TRY_ASSIGN(image.pipes[i].content_offset, writer_->append_pipe(pipes_[i]));
  }
  CKPT_TRY_ASSIGN(proc::Host host, proc::read_host());
  manifest_.host = {host.hostname, host.kernel, host.machine, host.boot_id, host.cpu_model, host.cpu_flags, host.xcr0, store::kPageSize};
  manifest_.kind = kind;
  store::ImageWriter::Totals totals = writer_->totals();
  manifest_.stats.pages_zero = plan_.pages_zero + totals.pages_zero;
  manifest_.stats.pages_unchanged = totals.pages_parent;
  phase("write");
  return writer_->commit(manifest_);
}

void Capture::keep_tracking() {
  if (!armed_ || !keeper_) return;
  std::error_code ec;
  capture::TrackedImage image{std::filesystem::canonical(options_.dir, ec), manifest_.id};
  auto kept = keeper_->hand_over(key_, pidfd_.get(), userfault_.get(), image);
  if (!kept) progress_.note(kept.error().text() + ": the next dump copies everything");
  armed_ = kept.has_value();
}

Result<void> Capture::end_target() {
  auto ended = frozen_->kill();
  if (ended || ended.error().code == Code::kNotFound) return {};
  return Error(std::move(ended).error()).with_target("running: the image is complete, but the process could not be ended");
}

DumpReport Capture::report(std::string target_state) {
  DumpReport out;
  out.totals = writer_->totals();
  out.manifest = std::move(manifest_);
  out.dir = options_.dir;
  out.tracked = tracked_, out.armed = armed_;
  out.target_state = std::move(target_state);
  return out;
}

Result<DumpReport> Capture::run_pre_dump() {
  CKPT_TRY(look_first());
  CKPT_TRY(choose_parent());
  CKPT_TRY(open_image());
  auto keeper = capture::Keeper::spawn();
  if (keeper) keeper_.emplace(std::move(*keeper));
  else progress_.note(keeper.error().text() + ": writes are not tracked");
  CKPT_TRY(freeze());
  CKPT_TRY(describe(true, keeper_.has_value()));
  CKPT_TRY(plan(keeper_.has_value()));
  progress_.begin("copy", manifest_.stats.bytes_memory);
  CKPT_TRY(capture::copy_blocks(options_.pid, plan_.live, *writer_, copy_options()));
  if (!snapshot_) CKPT_TRY(capture::copy_blocks(options_.pid, plan_.snapshot, *writer_, copy_options()));
  let_run();
  if (snapshot_) {
    CKPT_TRY(capture::copy_blocks(snapshot_->pid(), plan_.snapshot, *writer_, copy_options()));
    CKPT_TRY_ASSIGN(uint64_t stood, snapshot_->finish());
    manifest_.stats.frozen_us += stood;
  }
  phase("copy");
  CKPT_TRY(commit("pre-dump"));
  keep_tracking();
  return report("running");
}

Result<DumpReport> Capture::run_dump() {
  CKPT_TRY(look_first());
  CKPT_TRY(choose_parent());
  CKPT_TRY(open_image());
  prepare_staging();
  const bool runs_on = options_.after == DumpOptions::After::kLeaveRunning;
  if (runs_on && tracked_) {
    if (auto keeper = capture::Keeper::spawn()) keeper_.emplace(std::move(*keeper));
  }
  CKPT_TRY(freeze());
  CKPT_TRY(describe(false, keeper_.has_value()));
  CKPT_TRY(plan(keeper_.has_value()));
  std::vector<capture::BlockPlan> blocks = plan_.all();
  progress_.begin("copy", manifest_.stats.bytes_memory);
  CKPT_TRY(copy_frozen(blocks));
  phase("copy");
  manifest_.stats.frozen_us = monotonic_us() - frozen_->frozen_at_us();
  if (runs_on) let_run();
  CKPT_TRY(write_staged(blocks));
  CKPT_TRY(commit("dump"));
  if (runs_on) {
    keep_tracking();
    return report("running");
  }
  if (options_.after == DumpOptions::After::kLeaveStopped) {
    ::kill(options_.pid, SIGSTOP);
    frozen_->release();
    return report("stopped");
  }
  CKPT_TRY(end_target());
  return report("ended");
}

Result<DumpEstimate> Capture::estimate() {
  CKPT_TRY(look_first());
  CKPT_TRY(choose_parent());
  CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(options_.pid));
  CKPT_TRY_ASSIGN(plan_, capture::plan_pages(pagemap, options_.pid, tracked_ ? Tracking::kUse : Tracking::kNone, before_.image.maps));
  DumpEstimate out;
  out.pages_scanned = plan_.pages_scanned, out.pages_to_copy = plan_.pages_data, out.pages_unchanged = plan_.pages_parent;
  out.process = proc::describe_pid(options_.pid);
  out.parent = parent_;
  out.threads = static_cast<int>(before_.image.threads.size());
  out.maps = static_cast<int>(before_.image.maps.size());
  out.descriptors = static_cast<int>(before_.image.descriptors.size());
  return out;
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
  return with_target_state(options.pid, [&] { return Capture(options, progress, cancel).run_pre_dump(); }());
}

Result<DumpReport> dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel) {
  return with_target_state(options.pid, [&] { return Capture(options, progress, cancel).run_dump(); }());
}

Result<DumpEstimate> estimate_dump(const DumpOptions& options) {
  Cancel cancel;
  return Capture(options, null_progress(), cancel).estimate();
}

}  // namespace ckpt::engine
