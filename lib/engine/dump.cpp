#include "lib/engine/dump.h"

#include <signal.h>

#include <algorithm>
#include <map>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/text.h"
#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"
#include "lib/capture/connections.h"
#include "lib/capture/copy.h"
#include "lib/capture/inside.h"
#include "lib/capture/inventory.h"
#include "lib/capture/keeper.h"
#include "lib/capture/page_plan.h"
#include "lib/capture/snapshot.h"
#include "lib/capture/spaces.h"
#include "lib/proc/frozen_tree.h"
#include "lib/proc/host.h"
#include "lib/proc/userfault.h"

namespace ckpt::engine {

namespace {

using capture::Tracking;

/// Copied pages up to this size wait in memory until the target runs again.
constexpr uint64_t kStagingLimit = uint64_t{192} << 20;

/// What belongs to one process of the tree while it is captured.
struct Subject {
  int pid = 0;
  capture::ProcessKey key;
  proc::Gadgets gadgets;
  bool has_gadgets = false;
  bool tracked = false;  ///< the parent image's tracking is armed and ours to use
  bool armed = false;    ///< for the next one
  std::optional<capture::Keeper> keeper;
  UniqueFd userfault;
  std::optional<capture::Snapshot> snapshot;
  std::vector<std::vector<std::byte>> xstates;
  capture::PagePlan plan;
};

/// One pre-dump or dump, from the first look at the tree to the commit of its image. Members are in the order in which
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
  Subject& subject(const capture::Member& member);
  Result<void> choose_parent();
  Result<void> open_image();
  void spawn_keepers();
  void prepare_staging();
  Result<void> freeze();
  Result<void> take_final_inventory(bool hold_connections);
  Result<void> describe();
  Result<void> make_copies(bool want_snapshot, bool want_tracking);
  Result<void> make_tracker(size_t process, Subject& subject, proc::BorrowedThread& thread);
  Result<void> make_snapshot(Subject& subject, proc::BorrowedThread& thread);
  Result<void> plan(bool arm);
  Result<void> plan_contents();
  std::vector<capture::Part> private_parts(bool from_snapshots) const;
  Result<void> copy_frozen(const std::vector<capture::Part>& parts);
  Result<void> write_staged(const std::vector<capture::Part>& parts);
  void let_run();
  Result<void> commit(const char* kind);
  void keep_tracking();
  Result<void> act(const char* action);
  void finish_actions();
  Result<void> end_target();
  DumpReport report(std::string target_state);
  bool any_tracked() const;

  void phase(const char* name);
  void end_of_frozen_window();
  capture::CopyOptions copy_options() const { return {options_.workers, &progress_, &cancel_}; }
  capture::InventoryOptions inventory_options(const capture::Inventory* earlier) const {
    return {options_.shell_job, options_.ghost_limit, options_.sockets, earlier != nullptr, earlier};
  }

  const DumpOptions& options_;
  ProgressSink& progress_;
  const Cancel& cancel_;

  Stopwatch watch_;
  std::vector<capture::Member> members_;
  capture::Inventory before_;            ///< taken while the tree ran
  Result<bool> advice_ = true;           ///< capture::advice_unchanged, once advice_watch_ is through
  std::optional<WorkerPool> advice_watch_;
  capture::Inventory now_;               ///< taken in the frozen window; its `image` is in manifest_
  std::filesystem::path parent_;
  std::optional<store::Manifest> parent_manifest_;
  std::unique_ptr<store::ImageWriter> writer_;
  std::optional<capture::Staging> staging_;
  bool staged_ = false;
  store::Manifest manifest_;
  bool ends_target_ = false;
  capture::HeldConnections connections_;
  std::vector<capture::Part> contents_;  ///< shared memory and deleted files
  std::map<int, Subject> subjects_;      ///< by pid. Before frozen_: a snapshot's end stops the released target once more
  std::optional<proc::FrozenTree> frozen_;
  std::map<int, proc::Scratch> scratches_;  ///< by pid; after frozen_: they are removed while the processes stand still
};

/// The entry of a process, made when it is first seen.
Subject& Capture::subject(const capture::Member& member) {
  auto known = subjects_.find(member.entry.pid);
  if (known != subjects_.end() && known->second.key.start_time != member.start_time) subjects_.erase(known);
  Subject& out = subjects_[member.entry.pid];
  out.pid = member.entry.pid, out.key = {member.entry.pid, member.start_time};
  return out;
}

Result<void> Capture::look_first() {
  CKPT_TRY_ASSIGN(before_, capture::look_at_running(options_.pid, members_, inventory_options(nullptr)));
  if (!before_.blockers.empty()) return capture::blocked_error(options_.pid, before_.blockers);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].entry.zombie || before_.vmas[i].empty()) continue;
    Subject& process = subject(members_[i]);
    auto gadgets = proc::find_gadgets(process.pid, before_.vmas[i]);
    if (!gadgets && i == 0) return std::move(gadgets).error();
    if (!gadgets) continue;  // it has just begun, or is about to end: asked again once it stands still
    process.gadgets = *gadgets;
    process.has_gadgets = true;
  }
  return {};
}

/// --prev, or the image whose tracking a keeper holds. Tracking that belongs to another image than --prev is of no use.
Result<void> Capture::choose_parent() {
  auto tracked = capture::tracked_image(subject(members_[0]).key);
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
  parent_manifest_ = (*image)->manifest();
  const int root = parent_manifest_->tree.root().pid;
  if (root != options_.pid) {
    return fail(Code::kUsage, parent_.string(), "is an image of process " + std::to_string(root) + ", not of " + std::to_string(options_.pid));
  }
  for (auto& [pid, process] : subjects_) {
    auto image_of = capture::tracked_image(process.key);
    process.tracked = image_of && image_of->id == parent_manifest_->id;
  }
  if (!any_tracked()) progress_.note("no write tracking since " + parent_.string() + ": every page is read and compared");
  return {};
}

bool Capture::any_tracked() const {
  return std::any_of(subjects_.begin(), subjects_.end(), [](const auto& entry) { return entry.second.tracked; });
}

Result<void> Capture::open_image() {
  store::ImageWriter::Options options;
  options.force = options_.force, options.compress = options_.compress, options.parent = parent_;
  CKPT_TRY_ASSIGN(writer_, store::ImageWriter::create(options_.dir, options));
  return {};
}

void Capture::spawn_keepers() {
  for (auto& [pid, process] : subjects_) {
    auto keeper = capture::Keeper::spawn();
    if (!keeper) return progress_.note(keeper.error().text() + ": writes are not tracked");
    process.keeper.emplace(std::move(*keeper));
  }
}

/// Room for what will be copied in the frozen window, faulted in beforehand: a quarter more than is dirty now.
void Capture::prepare_staging() {
  uint64_t bytes = 0;
  for (const store::ProcessImage& image : before_.image.processes) {
    if (image.maps.empty()) continue;
    auto pagemap = proc::Pagemap::open(image.pid);
    if (!pagemap) return;
    std::vector<store::MemoryMap> maps = image.maps;
    auto guess = capture::plan_pages(*pagemap, subjects_[image.pid].tracked ? Tracking::kUse : Tracking::kNone, maps);
    if (!guess) return;
    bytes += guess->pages_data * store::kPageSize;
  }
  for (const store::SharedMemory& memory : before_.image.shared_memory) bytes += memory.size;
  if (bytes > kStagingLimit) return;  // it would not fit, and is dear to make
  staging_ = capture::Staging::make(std::min(bytes + bytes / 4 + (uint64_t{1} << 20), kStagingLimit), kStagingLimit);
}

Result<void> Capture::freeze() {
  phase("prepare");
  // From here on the old tracking is ours alone: re-arming it makes the keeper's word about its image void. What belongs to
  // another image is left with its keeper unless new tracking is about to replace it.
  for (auto& [pid, process] : subjects_) {
    if (!process.tracked && !process.keeper) continue;
    auto taken = capture::take_over_tracking(process.key);
    process.tracked = process.tracked && taken && taken->image.id == parent_manifest_->id;
    if (process.tracked) process.userfault = std::move(taken->userfault);
  }
  CKPT_TRY_ASSIGN(proc::FrozenTree frozen, proc::FrozenTree::freeze(options_.pid, options_.freeze_timeout_us, cancel_));
  frozen_.emplace(std::move(frozen));
  const uint64_t root_started = members_[0].start_time;
  CKPT_TRY_ASSIGN(members_, capture::open_members(frozen_->entries(), std::move(members_)));
  if (members_[0].start_time != root_started) return fail(Code::kNotFound, "process " + std::to_string(options_.pid), "has ended");
  phase("freeze");
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
  for (const std::string& note : now_.notes) progress_.note(note);
  return {};
}

Result<void> Capture::describe() {
  CKPT_TRY(take_final_inventory(ends_target_ && options_.sockets.tcp_established));
  if (!now_.blockers.empty()) return capture::blocked_error(options_.pid, now_.blockers);
  manifest_.tree = std::move(now_.image);
  manifest_.tree.packet_filter = connections_.filter();
  CKPT_TRY(capture::number_spaces(manifest_.tree, parent_manifest_ ? &parent_manifest_->tree : nullptr));
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
    CKPT_TRY(capture::describe_inside(frozen_->process(process.pid), room, now_, manifest_.tree, i, process.xstates));
  }
  phase("describe");
  return {};
}

/// Snapshots and write tracking, as far as they are wanted, and the end of what was borrowed.
Result<void> Capture::make_copies(bool want_snapshot, bool want_tracking) {
  for (size_t i = 0; i < members_.size(); ++i) {
    const store::ProcessImage& image = manifest_.tree.processes[i];
    if (image.zombie) continue;
    Subject& process = subject(members_[i]);
    const bool track = want_tracking && process.keeper.has_value();
    proc::Scratch& scratch = scratches_.at(process.pid);
    if (image.memory_of < 0 && (want_snapshot || track)) {
      CKPT_TRY_ASSIGN(proc::BorrowedThread thread, proc::BorrowedThread::begin(scratch, process.pid));
      if (track) CKPT_TRY(make_tracker(i, process, thread));
      if (want_snapshot) CKPT_TRY(make_snapshot(process, thread));
      CKPT_TRY(thread.finish());
    }
    CKPT_TRY(scratch.unmap());
  }
  scratches_.clear();
  phase("snapshot");
  return {};
}

Result<void> Capture::make_tracker(size_t index, Subject& process, proc::BorrowedThread& thread) {
  if (!process.userfault) {
    auto made = proc::make_write_tracker(thread, members_[index].pidfd.get());
    if (!made && made.error().code == Code::kNotFound) return std::move(made).error();
    if (!made) progress_.note("writes cannot be tracked (" + made.error().text() + "): the next dump copies everything");
    if (made) process.userfault = std::move(*made);
  }
  if (!process.userfault) return {};
  for (const store::MemoryMap& map : manifest_.tree.processes[index].maps) {
    bool tracked = map.kind == store::MappingKind::kAnonymous || map.kind == store::MappingKind::kPrivateFile;
    // A mapping that refuses reads as written for ever.
    if (tracked) (void)proc::track_range(process.userfault.get(), map.start, map.end);
  }
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
  progress_.note("no copy-on-write snapshot of process " + std::to_string(process.pid) + " (" + snapshot.error().text() +
                 "): the tree stands still while it is copied");
  return {};
}

Result<void> Capture::plan(bool arm) {
  store::CaptureStats& stats = manifest_.stats;
  for (store::ProcessImage& image : manifest_.tree.processes) {
    if (image.zombie || image.memory_of >= 0) continue;
    Subject& process = subjects_[image.pid];
    CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(image.pid));
    if (!pagemap.can_scan()) {
      if (image.pid == options_.pid) progress_.note("this kernel cannot tell which pages were written (PAGEMAP_SCAN, 6.7): copying everything");
      process.tracked = false;
      arm = false;
    }
    process.armed = arm && process.userfault;
    Tracking tracking = process.tracked ? (process.armed ? Tracking::kUseAndArm : Tracking::kUse)
                                        : (process.armed ? Tracking::kArm : Tracking::kNone);
    CKPT_TRY_ASSIGN(process.plan, capture::plan_pages(pagemap, tracking, image.maps));
    stats.pages_scanned += process.plan.pages_scanned;
    stats.pages_copied += process.plan.pages_data;
    stats.pages_zero += process.plan.pages_zero;
  }
  CKPT_TRY(plan_contents());
  stats.bytes_memory = stats.pages_copied * store::kPageSize;
  phase("scan");
  return {};
}

Result<void> Capture::plan_contents() {
  auto add = [&](int space, uint64_t size, const capture::ContentSource& source) -> Result<void> {
    capture::Part part{space, source.pid, source.fd.get(), source.shift, {}};
    CKPT_TRY_ASSIGN(part.blocks, capture::plan_content(source.fd.get(), size));
    manifest_.stats.pages_scanned += capture::count_data(part.blocks);
    manifest_.stats.pages_copied += capture::count_data(part.blocks);
    contents_.push_back(std::move(part));
    return {};
  };
  const store::TreeImage& tree = manifest_.tree;
  for (size_t i = 0; i < tree.shared_memory.size(); ++i) {
    if (tree.shared_memory[i].size != 0) CKPT_TRY(add(tree.shared_memory[i].space, tree.shared_memory[i].size, now_.shared_memory[i]));
  }
  for (size_t i = 0; i < tree.files.size(); ++i) {
    if (tree.files[i].space >= 0) CKPT_TRY(add(tree.files[i].space, tree.files[i].size, now_.ghosts[i]));
  }
  return {};
}

/// The processes' private memory: what their snapshots hold, or what must be read while they stand still.
std::vector<capture::Part> Capture::private_parts(bool from_snapshots) const {
  std::vector<capture::Part> out;
  for (const store::ProcessImage& image : manifest_.tree.processes) {
    auto found = subjects_.find(image.pid);
    if (image.zombie || image.memory_of >= 0 || found == subjects_.end()) continue;
    const Subject& process = found->second;
    if (from_snapshots) {
      if (process.snapshot) out.push_back({image.space, process.snapshot->pid(), -1, 0, process.plan.snapshot});
    } else {
      out.push_back({image.space, image.pid, -1, 0, process.snapshot ? process.plan.live : process.plan.all()});
    }
  }
  return out;
}

/// Inside the frozen window: into the staging memory if it fits, else straight through to the image.
Result<void> Capture::copy_frozen(const std::vector<capture::Part>& parts) {
  staged_ = staging_ && staging_->fits(parts);
  if (staged_) return staging_->read(parts, options_.workers);
  return capture::copy_blocks(parts, *writer_, copy_options());
}

Result<void> Capture::write_staged(const std::vector<capture::Part>& parts) {
  if (!staged_) return {};
  return staging_->write(parts, *writer_, copy_options());
}

void Capture::phase(const char* name) {
  const uint64_t begin = watch_.started_us(), took = watch_.lap_us();
  manifest_.stats.phases_us.emplace_back(name, took);
  trace::interval(trace::Row::kPhases, name, begin, begin + took);
}

void Capture::end_of_frozen_window() {
  const uint64_t begin = frozen_->frozen_at_us(), end = monotonic_us();
  manifest_.stats.frozen_us = end - begin;
  trace::interval(trace::Row::kTarget, "frozen", begin, end);
  // The kernel walks all page tables for the answer: while the image is written.
  advice_watch_.emplace(1).submit([this] { return advice_ = capture::advice_unchanged(before_), Result<void>(); });
}

void Capture::let_run() {
  frozen_->release();
  end_of_frozen_window();
}

Result<void> Capture::commit(const char* kind) {
  CKPT_TRY(cancel_.check());
  CKPT_TRY(advice_watch_->finish());
  if (advice_ && !*advice_) return fail(Code::kBusy, proc::describe_pid(options_.pid), "changed the advice on its mappings (madvise, mlock) meanwhile: try again");
  for (store::ProcessImage& image : manifest_.tree.processes) {
    if (image.zombie) continue;
    const Subject& process = subjects_[image.pid];
    for (size_t i = 0; i < image.threads.size(); ++i) {
      CKPT_TRY_ASSIGN(image.threads[i].xstate_offset, writer_->append_xstate(process.xstates[i]));
    }
  }
  for (size_t i = 0; i < manifest_.tree.pipes.size(); ++i) {
    CKPT_TRY_ASSIGN(manifest_.tree.pipes[i].content_offset, writer_->append_pipe(now_.pipe_contents[i]));
  }
  for (size_t i = 0; i < manifest_.tree.sockets.size(); ++i) {
    CKPT_TRY_ASSIGN(manifest_.tree.sockets[i].content_offset, writer_->append_pipe(now_.socket_contents[i]));
  }
  CKPT_TRY_ASSIGN(proc::Host host, proc::read_host());
  manifest_.host = {host.hostname, host.kernel, host.machine, host.boot_id, host.cpu_model, host.cpu_flags, host.xcr0, store::kPageSize};
  manifest_.kind = kind;
  store::ImageWriter::Totals totals = writer_->totals();
  manifest_.stats.pages_zero += totals.pages_zero;
  manifest_.stats.pages_unchanged = totals.pages_parent;
  phase("write");
  return writer_->commit(manifest_);
}

void Capture::keep_tracking() {
  std::error_code ec;
  capture::TrackedImage image{std::filesystem::canonical(options_.dir, ec), manifest_.id};
  for (const capture::Member& member : members_) {
    auto found = subjects_.find(member.entry.pid);
    if (found == subjects_.end() || !found->second.armed || !found->second.keeper) continue;
    Subject& process = found->second;
    auto kept = process.keeper->hand_over(process.key, member.pidfd.get(), process.userfault.get(), image);
    if (!kept) progress_.note(kept.error().text() + ": the next dump copies everything");
    process.armed = kept.has_value();
  }
}

/// Of a tree that runs on: nothing depends on the scripts any more.
void Capture::finish_actions() {
  if (auto done = act("post-dump"); !done) progress_.note(done.error().text());
  options_.actions.ready();
}

Result<void> Capture::end_target() {
  CKPT_TRY(connections_.silence(now_.connections));
  auto ended = frozen_->kill();
  connections_.keep();
  if (ended || ended.error().code == Code::kNotFound) return {};
  return Error(std::move(ended).error()).with_target("running: the image is complete, but the process could not be ended");
}

DumpReport Capture::report(std::string target_state) {
  DumpReport out;
  out.totals = writer_->totals();
  out.tracked = any_tracked(), out.armed = subjects_[options_.pid].armed;
  out.manifest = std::move(manifest_);
  out.dir = options_.dir;
  out.target_state = std::move(target_state);
  return out;
}

Result<void> Capture::act(const char* action) {
  return options_.actions.run(action, options_.pid, std::filesystem::absolute(options_.dir), cancel_);
}

Result<DumpReport> Capture::run_pre_dump() {
  CKPT_TRY(look_first());
  CKPT_TRY(choose_parent());
  CKPT_TRY(open_image());
  CKPT_TRY(act("pre-dump"));
  spawn_keepers();
  CKPT_TRY(freeze());
  CKPT_TRY(describe());
  CKPT_TRY(make_copies(true, true));
  CKPT_TRY(plan(true));
  progress_.begin("copy", manifest_.stats.bytes_memory);
  CKPT_TRY(capture::copy_blocks(private_parts(false), *writer_, copy_options()));
  CKPT_TRY(capture::copy_blocks(contents_, *writer_, copy_options()));
  let_run();
  CKPT_TRY(capture::copy_blocks(private_parts(true), *writer_, copy_options()));
  uint64_t longest = 0;
  for (auto& [pid, process] : subjects_) {
    if (!process.snapshot) continue;
    CKPT_TRY_ASSIGN(uint64_t stood, process.snapshot->finish());
    longest = std::max(longest, stood);
  }
  manifest_.stats.frozen_us += longest;
  phase("copy");
  CKPT_TRY(commit("pre-dump"));
  keep_tracking();
  finish_actions();
  return report("running");
}

Result<DumpReport> Capture::run_dump() {
  CKPT_TRY(look_first());
  CKPT_TRY(choose_parent());
  CKPT_TRY(open_image());
  CKPT_TRY(act("pre-dump"));
  prepare_staging();
  const bool runs_on = options_.after == DumpOptions::After::kLeaveRunning;
  ends_target_ = options_.after == DumpOptions::After::kEnd;
  if (ends_target_ && options_.sockets.tcp_established) CKPT_TRY(connections_.hold(before_.connections));
  if (runs_on && any_tracked()) spawn_keepers();
  CKPT_TRY(freeze());
  CKPT_TRY(describe());
  CKPT_TRY(make_copies(false, runs_on));
  CKPT_TRY(plan(runs_on));
  std::vector<capture::Part> parts = private_parts(false);
  std::move(contents_.begin(), contents_.end(), std::back_inserter(parts));
  progress_.begin("copy", manifest_.stats.bytes_memory);
  CKPT_TRY(copy_frozen(parts));
  phase("copy");
  runs_on ? let_run() : end_of_frozen_window();
  CKPT_TRY(write_staged(parts));
  CKPT_TRY(commit("dump"));
  if (runs_on) {
    keep_tracking();
    finish_actions();
    return report("running");
  }
  // The image is there whatever comes now; a script that fails keeps the tree alive.
  CKPT_TRY(act("post-dump"));
  if (options_.after == DumpOptions::After::kLeaveStopped) {
    for (const capture::Member& member : members_) ::kill(member.entry.pid, SIGSTOP);
    frozen_->release();
    options_.actions.ready();
    return report("stopped");
  }
  CKPT_TRY(end_target());
  options_.actions.ready();
  return report("ended");
}

Result<DumpEstimate> Capture::estimate() {
  CKPT_TRY(look_first());
  CKPT_TRY(choose_parent());
  DumpEstimate out;
  for (store::ProcessImage& image : before_.image.processes) {
    out.threads += static_cast<int>(image.threads.size());
    out.maps += static_cast<int>(image.maps.size());
    if (image.maps.empty()) continue;
    CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(image.pid));
    Tracking tracking = subjects_[image.pid].tracked ? Tracking::kUse : Tracking::kNone;
    CKPT_TRY_ASSIGN(capture::PagePlan plan, capture::plan_pages(pagemap, tracking, image.maps));
    out.pages_scanned += plan.pages_scanned, out.pages_to_copy += plan.pages_data, out.pages_unchanged += plan.pages_parent;
  }
  out.process = proc::describe_pid(options_.pid);
  out.processes = static_cast<int>(before_.image.processes.size());
  out.parent = parent_;
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
