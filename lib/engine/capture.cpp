#include "lib/engine/capture.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lib/base/text.h"
#include "lib/base/trace.h"
#include "lib/memory/leftovers.h"
#include "lib/memory/spaces.h"
#include "lib/proc/host.h"
#include "lib/proc/userfault.h"
#include "lib/state/inside.h"

namespace ckpt::engine {

using capture::ScanFor;

/// The entry of a process, made when it is first seen.
Subject& Capture::subject(const capture::Member& member) {
  auto known = subjects_.find(member.entry.pid);
  if (known != subjects_.end() && known->second.key.start_time != member.start_time) subjects_.erase(known);
  Subject& out = subjects_[member.entry.pid];
  out.pid = member.entry.pid, out.key = {member.entry.pid, member.start_time};
  return out;
}

Result<void> Capture::look_first(const capture::Inventory* just_before) {
  capture::InventoryOptions how = inventory_options(nullptr);
  how.just_before = just_before;
  constexpr unsigned kPauseUs = 10'000;
  const uint64_t deadline = monotonic_us() + options_.freeze_timeout_us;
  for (;;) {
    looked_at_us_ = monotonic_us();
    CKPT_TRY_ASSIGN(before_, capture::look_at_running(options_.pid, members_, how));
    if (before_.blockers.empty()) break;
    if (!capture::all_pass(before_.blockers) || monotonic_us() > deadline)
      return capture::blocked_error(options_.pid, before_.blockers);
    CKPT_TRY(cancel_.check());
    ::usleep(kPauseUs);
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].entry.zombie || before_.vmas[i].empty()) continue;
    Subject& process = subject(members_[i]);
    auto gadgets = proc::find_gadgets(process.pid, before_.vmas[i]);
    if (!gadgets && i == 0) return std::move(gadgets).error();
    if (!gadgets) continue;  // it has just begun, or is about to end: asked again once it stands still
    process.gadgets = *gadgets;
    process.has_gadgets = true;
    process.pinned = before_.statuses[i][0].has_pinned_pages;
  }
  return find_devices();
}

/// Rounds protect pages while the processes run: two captures at a time would each make the other one miss what was
/// written.
Result<void> Capture::lock_processes() {
  for (auto at = subjects_.begin(); at != subjects_.end();) {
    Subject& process = at->second;
    if (!process.lock) {
      auto lock = capture::CaptureLock::take(process.key);
      if (!lock && lock.error().code == Code::kNotFound && at->first != options_.pid) {  // it has ended since the look
        at = subjects_.erase(at);
        continue;
      }
      if (!lock) return std::move(lock).error();
      process.lock.emplace(std::move(*lock));
    }
    ++at;
  }
  return {};
}

/// What ckpts that were killed have left would be taken for the target's own.
Result<void> Capture::clear_leftovers() {
  bool cleared = false;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].entry.zombie || before_.vmas[i].empty()) continue;
    const capture::Leftovers left = capture::find_leftovers(members_[i].entry.pid, before_.vmas[i]);
    if (left.empty()) continue;
    CKPT_TRY(capture::clear_leftovers(members_[i].entry.pid, left));
    cleared = true;
  }
  if (!cleared) return {};
  CKPT_TRY(look_first());
  return lock_processes();
}

namespace {

/// Whether --force replaces an image that `parent` is, or reads from.
bool replaces(const std::filesystem::path& dir, const store::ImageReader& parent) {
  const auto there = store::read_manifest(dir);
  if (!there) return false;
  const auto chain = parent.chain();
  return std::any_of(chain.begin(), chain.end(), [&](const store::Manifest* image) { return image->id == there->id; });
}

}  // namespace

/// --prev, or the image whose tracking a keeper holds. Tracking that belongs to another image than --prev is of no use.
Result<void> Capture::choose_parent() {
  if (options_.no_prev) return {};
  auto tracked = capture::tracked_image(subject(members_[0]).key);
  parent_ = options_.prev;
  if (parent_.empty() && !tracked) return {};
  if (parent_.empty()) parent_ = tracked->path;
  auto image = store::ImageReader::open(parent_);
  if (!image && options_.prev.empty()) {
    progress_.note("the image of the last pre-dump (" + parent_.string() + ") cannot be used: " + image.error().text() +
                   "; copying everything");
    parent_.clear();
    return {};
  }
  if (!image) return std::move(image).error();
  if (options_.prev.empty() && options_.force && replaces(options_.dir, **image)) {
    progress_.note("the image of the last pre-dump (" + parent_.string() +
                   ") reads from the one that --force replaces: copying everything");
    parent_.clear();
    return {};
  }
  parent_manifest_ = (*image)->manifest();
  const int root = parent_manifest_->tree.root().pid;
  if (root != options_.pid) {
    return fail(Code::kUsage, parent_.string(),
                "is an image of process " + std::to_string(root) + ", not of " + std::to_string(options_.pid));
  }
  for (auto& [pid, process] : subjects_) {
    auto image_of = capture::tracked_image(process.key);
    process.tracked = image_of && image_of->id == parent_manifest_->id;
  }
  if (!any_tracked())
    progress_.note("no write tracking since " + parent_.string() + ": every page is read and compared");
  return {};
}

bool Capture::any_tracked() const {
  return std::any_of(subjects_.begin(), subjects_.end(), [](const auto& entry) { return entry.second.tracked; });
}

Result<void> Capture::make_writer() {
  store::ImageWriter::Options options;
  options.force = options_.force, options.compress = options_.compress, options.parent = parent_;
  options.sha256_pages = options_.sha256_pages;
  CKPT_TRY_ASSIGN(writer_, store::ImageWriter::create(options_.dir, options));
  return {};
}

Result<void> Capture::open_image() {
  CKPT_TRY(make_writer());
  if (auto tidier = Tidier::spawn(options_.pid, std::filesystem::absolute(writer_->staging())))
    tidier_.emplace(std::move(*tidier));
  return {};
}

void Capture::spawn_keepers() {
  for (auto& [pid, process] : subjects_) {
    auto keeper = capture::Keeper::spawn();
    if (!keeper) return progress_.note(keeper.error().text() + ": writes are not tracked");
    process.keeper.emplace(std::move(*keeper));
  }
}

/// From here on the old tracking is ours alone: protecting again makes the keeper's word about its image void. What
/// belongs to another image is left with its keeper unless new tracking is about to replace it.
void Capture::take_over_tracking(bool all) {
  for (auto& [pid, process] : subjects_) {
    if (process.userfault || (!process.tracked && !all)) continue;
    auto taken = capture::take_over_tracking(process.key);
    process.tracked = process.tracked && taken && taken->image.id == parent_manifest_->id;
    if (process.tracked) process.userfault = std::move(taken->userfault);
  }
}

Result<void> Capture::freeze() {
  phase("prepare");
  CKPT_TRY_ASSIGN(proc::FrozenTree frozen, proc::FrozenTree::freeze(options_.pid, options_.freeze_timeout_us, cancel_));
  frozen_.emplace(std::move(frozen));
  const uint64_t root_started = members_[0].start_time;
  CKPT_TRY_ASSIGN(members_, capture::open_members(frozen_->entries(), std::move(members_)));
  if (members_[0].start_time != root_started)
    return fail(Code::kNotFound, "process " + std::to_string(options_.pid), "has ended");
  phase("freeze");
  if (!devices_.empty()) {
    CKPT_TRY(devices_.checkpoint(&*frozen_));
    phase("gpu checkpoint");
  }
  return {};
}

/// A connection that came to be since the first look is held off too, and then its state is taken once more.
Result<void> Capture::take_final_inventory(bool hold_connections) {
  for (bool again = true; again;) {
    CKPT_TRY_ASSIGN(now_, capture::take_inventory(members_, inventory_options(&before_)));
    again = false;
    if (hold_connections) {
      CKPT_TRY_ASSIGN(again, connections_.hold(now_.connections));
    }
  }
  return {};
}

/// What stands in the way for a moment only (a connection that nobody has accepted yet) passes while the tree goes on:
/// it is let go, and stopped anew a little later.
Result<void> Capture::stop_at_a_good_moment() {
  constexpr uint64_t kLongestPauseUs = 50'000;
  const uint64_t deadline = monotonic_us() + options_.freeze_timeout_us;
  const bool holds = ends_target_ && options_.sockets.tcp_established;
  for (uint64_t pause = 1'000;; pause = std::min(2 * pause, kLongestPauseUs)) {
    CKPT_TRY(freeze());
    CKPT_TRY(take_final_inventory(holds));
    if (now_.blockers.empty()) break;
    if (!capture::all_pass(now_.blockers) || !devices_.empty() || monotonic_us() > deadline)
      return capture::blocked_error(options_.pid, now_.blockers);
    CKPT_TRY(cancel_.check());
    frozen_->release();
    const uint64_t begin = frozen_->frozen_at_us(), end = monotonic_us();
    frozen_.reset();
    manifest_.stats.stops_us += end - begin;
    trace::interval(trace::Row::kTarget, "frozen at a bad moment", begin, end);
    connections_.let_go();
    ::usleep(static_cast<useconds_t>(pause));
    if (holds) CKPT_TRY(connections_.hold(now_.connections));
  }
  for (const std::string& note : now_.notes) progress_.note(note);
  return {};
}

/// Trees whose memory spaces have numbers that must mean the same in this image.
std::vector<const store::TreeImage*> Capture::earlier_trees() const {
  std::vector<const store::TreeImage*> out;
  if (parent_manifest_) out.push_back(&parent_manifest_->tree);
  if (!numbered_.processes.empty()) out.push_back(&numbered_);
  return out;
}

Result<void> Capture::describe() {
  manifest_.tree = std::move(now_.image);
  manifest_.tree.packet_filter = connections_.filter();
  manifest_.tree.gpu = devices_.state();
  owned_.add_spaces(manifest_.tree);
  CKPT_TRY(capture::number_spaces(manifest_.tree, earlier_trees()));
  phase("inventory");
  for (size_t i = 0; i < members_.size(); ++i) {
    store::ProcessImage& image = manifest_.tree.processes[i];
    if (image.zombie) continue;
    Subject& process = subject(members_[i]);
    if (!process.has_gadgets || !proc::still_hold(process.pid, process.gadgets)) {
      const size_t memory = image.memory_of < 0 ? i : static_cast<size_t>(image.memory_of);
      CKPT_TRY_ASSIGN(process.gadgets, proc::find_gadgets(process.pid, now_.vmas[memory]));
    }
    CKPT_TRY_ASSIGN(proc::Scratch scratch, proc::Scratch::map(process.pid, process.pid, process.gadgets));
    const proc::Scratch& room = scratches_.emplace(process.pid, std::move(scratch)).first->second;
    image.gpu_thread = devices_.restore_thread(process.pid);
    CKPT_TRY(capture::describe_inside(frozen_->process(process.pid), room, now_, manifest_.tree, i, process.xstates));
  }
  phase("describe");
  return {};
}

/// Snapshots and write tracking, as far as they are wanted, and the end of what was borrowed.
Result<void> Capture::make_copies() {
  for (size_t i = 0; i < members_.size(); ++i) {
    const store::ProcessImage& image = manifest_.tree.processes[i];
    if (image.zombie) continue;
    Subject& process = subject(members_[i]);
    const bool track = keeps_tracking_ && process.keeper && !process.userfault;
    proc::Scratch& scratch = scratches_.at(process.pid);
    if (image.memory_of < 0 && (wants_snapshot_ || track)) {
      CKPT_TRY_ASSIGN(proc::BorrowedThread thread, proc::BorrowedThread::begin(scratch, process.pid));
      if (track) CKPT_TRY(make_tracker(i, process, thread));
      if (wants_snapshot_) CKPT_TRY(make_snapshot(process, thread));
      CKPT_TRY(thread.finish());
    }
    CKPT_TRY(scratch.unmap());
  }
  scratches_.clear();
  phase("snapshot");
  return {};
}

Result<void> Capture::make_tracker(size_t index, Subject& process, proc::BorrowedThread& thread) {
  auto made = proc::make_write_tracker(thread, members_[index].pidfd.get());
  if (!made && made.error().code == Code::kNotFound) return std::move(made).error();
  if (!made) {
    progress_.note("writes cannot be tracked (" + made.error().text() + "): the next dump copies everything");
    return {};
  }
  process.userfault = std::move(*made);
  capture::track_mappings(process.userfault.get(), manifest_.tree.processes[index].maps);
  return {};
}

/// Without the memory for a fork the copy is made while the target stands still: said, not hidden.
Result<void> Capture::make_snapshot(Subject& process, proc::BorrowedThread& thread) {
  auto snapshot = capture::Snapshot::take(thread, process.pid, process.gadgets);
  if (snapshot) {
    process.snapshot.emplace(std::move(*snapshot));
    return {};
  }
  if (snapshot.error().code == Code::kNotFound) return std::move(snapshot).error();
  progress_.note("no copy-on-write snapshot of process " + std::to_string(process.pid) + " (" +
                 snapshot.error().text() + "): the tree stands still while it is copied");
  return {};
}

/// Processes side by side; but the pages of one that has very many are shared out among all threads.
Result<void> Capture::scan() {
  constexpr uint64_t kVeryMany = (uint64_t{512} << 20) / store::kPageSize;
  std::vector<std::pair<store::ProcessImage*, Subject*>> others;
  CKPT_TRY(each_memory([&](store::ProcessImage& image, Subject& process) -> Result<void> {
    if (process.private_pages >= kVeryMany) return scan_process(image, process, pool());
    others.emplace_back(&image, &process);
    return {};
  }));
  CKPT_TRY(side_by_side(pool(), others.size(),
                        [&](size_t i) { return scan_process(*others[i].first, *others[i].second, nullptr); }));
  CKPT_TRY(scan_contents());
  phase("scan");
  return {};
}

Result<void> Capture::scan_process(store::ProcessImage& image, Subject& process, WorkerPool* pool) {
  CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(image.pid));
  if (!pagemap.can_scan()) {
    if (image.pid == options_.pid)
      progress_.note("this kernel cannot tell which pages were written (PAGEMAP_SCAN, 6.7): copying everything");
    process.userfault.reset();
  }
  // What is written to pinned pages from here on goes unseen, also once they are no longer pinned.
  process.pinned = devices_.holds(process.pid) ||
                   now_.statuses[static_cast<size_t>(&image - manifest_.tree.processes.data())][0].has_pinned_pages;
  if (process.pinned) process.userfault.reset();
  process.tracked = process.tracked && process.userfault;
  process.armed = keeps_tracking_ && process.keeper && process.userfault;
  // A snapshot is looked at later, but for what a fork leaves out; and the rounds have protected the process already.
  const bool arm = process.armed && !(process.snapshot && process.tracked && !manifest_.stats.rounds.empty());
  if (process.snapshot) {
    std::vector<store::MemoryMap> live = capture::left_out_by_fork(image.maps);
    CKPT_TRY_ASSIGN(auto found, capture::scan_private(pagemap, live, ScanFor::kPopulated));
    process.plan = capture::plan_data(found, ScanFor::kPopulated, live);
  } else if (process.tracked) {
    CKPT_TRY_ASSIGN(auto found, capture::scan_private(pagemap, image.maps, ScanFor::kChanges, pool));
    capture::unite(process.changes, found);
    CKPT_TRY(add_missed(pagemap, process));
    process.plan = capture::plan_data(process.changes, ScanFor::kChanges, image.maps);
  }
  if (!arm && (process.snapshot || process.tracked)) return {};
  const ScanFor what = !arm ? ScanFor::kPopulated : process.tracked ? ScanFor::kWritten : ScanFor::kProtected;
  CKPT_TRY_ASSIGN(auto found, capture::scan_private(pagemap, image.maps, what, pool));
  if (process.snapshot && process.tracked) capture::unite(process.changes, found);
  else if (!process.snapshot && !process.tracked)
    process.plan = capture::plan_data(found, ScanFor::kPopulated, image.maps);
  return {};
}

/// What a round could not read has changed as far as the image is concerned.
Result<void> Capture::add_missed(const proc::Pagemap& pagemap, Subject& process) {
  if (!ahead_) return {};
  for (const proc::PageRegion& missed : ahead_->missed(process.pid)) {
    CKPT_TRY_ASSIGN(auto found, pagemap.scan(missed.start, missed.end));
    capture::unite(process.changes, found);
  }
  return {};
}

Result<void> Capture::scan_contents() {
  auto add = [&](int space, uint64_t size, const capture::ContentSource& source) -> Result<void> {
    capture::Part part{space, source.pid, source.fd.get(), source.shift, {}};
    CKPT_TRY_ASSIGN(part.blocks, capture::plan_content(source.fd.get(), size));
    contents_.push_back(std::move(part));
    return {};
  };
  const store::TreeImage& tree = manifest_.tree;
  for (size_t i = 0; i < tree.shared_memory.size(); ++i) {
    if (tree.shared_memory[i].size != 0)
      CKPT_TRY(add(tree.shared_memory[i].space, tree.shared_memory[i].size, now_.shared_memory[i]));
  }
  for (size_t i = 0; i < tree.files.size(); ++i) {
    if (tree.files[i].space >= 0) CKPT_TRY(add(tree.files[i].space, tree.files[i].size, now_.ghosts[i]));
  }
  return {};
}

/// What must be read while the processes stand still.
std::vector<capture::Part> Capture::frozen_parts() const {
  std::vector<capture::Part> out;
  for (const store::ProcessImage& image : manifest_.tree.processes) {
    auto found = subjects_.find(image.pid);
    if (image.zombie || image.memory_of >= 0 || found == subjects_.end()) continue;
    const Subject& process = found->second;
    for (const auto* blocks : {&process.plan.snapshot, &process.plan.live}) {
      if (!blocks->empty()) out.push_back({image.space, image.pid, -1, 0, *blocks});
    }
  }
  return out;
}

/// Into the staging memory if it fits, else straight through to the image.
Result<void> Capture::copy_frozen() {
  copied_ = frozen_parts();
  std::move(contents_.begin(), contents_.end(), std::back_inserter(copied_));
  staged_ = staging_ && staging_->fits(copied_);
  if (!staged_) CKPT_TRY(owned_.copy_now());  // what is in the image cannot be taken back for a second moment
  progress_.begin("copy", capture::total_bytes(copied_));
  if (staged_) CKPT_TRY(staging_->read(copied_, pool_ ? &*pool_ : nullptr));
  else CKPT_TRY(capture::copy_blocks(copied_, *writer_, copy_options()));
  phase("copy");
  return {};
}

void Capture::phase(const char* name) {
  const uint64_t begin = watch_.started_us(), took = watch_.lap_us();
  auto& phases = manifest_.stats.phases_us;
  auto same = std::find_if(phases.begin(), phases.end(), [&](const auto& other) { return other.first == name; });
  if (same != phases.end()) same->second += took;  // a round after the preparations
  else phases.emplace_back(name, took);
  trace::interval(trace::Row::kPhases, name, begin, begin + took);
}

/// The tree may stand still for longer: until it has ended.
void Capture::end_of_frozen_window() {
  const uint64_t begin = frozen_->frozen_at_us(), end = monotonic_us();
  manifest_.stats.frozen_us = end - begin;
  trace::interval(trace::Row::kTarget, "frozen", begin, end);
  // The kernel walks all page tables for the answer: while the image is written.
  advice_watch_->submit([this] { return advice_ = capture::advice_unchanged(before_), Result<void>(); });
}

Result<void> Capture::let_run() {
  if (!devices_.empty()) {
    CKPT_TRY(devices_.give_back(&*frozen_));
    phase("gpu restore");
  }
  frozen_->release();
  end_of_frozen_window();
  CKPT_TRY(owned_.give_back());
  devices_.end_guard();
  if (held_since_us_ != 0) manifest_.stats.gpu_held_us += monotonic_us() - std::exchange(held_since_us_, 0);
  if (!owned_.empty()) phase("gpu attach");
  return {};
}

}  // namespace ckpt::engine
