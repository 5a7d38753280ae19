#include "lib/engine/freeze_window.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/trace.h"
#include "lib/memory/precopy.h"
#include "lib/proc/userfault.h"
#include "lib/state/inside.h"

namespace ckpt::engine {

using capture::ScanFor;

FreezeWindow::~FreezeWindow() {
  release();
  states_.clear();  // the end of a snapshot stops the released process once more
}

void FreezeWindow::release() {
  areas_.clear();  // from processes that are still frozen
  if (tree_) tree_->release();
}

Result<void> FreezeWindow::let_go() {
  CKPT_TRY(capture_.devices.give_back(tree_ ? &*tree_ : nullptr));
  release();
  return capture_.devices.attach();
}

/// A tree that stays frozen cannot change its advice any more, and thousands of mappings are many lines to print, but
/// few pages to walk: one processor has nothing else to do in the freeze window.
bool FreezeWindow::asks_at_once() const {
  constexpr size_t kMany = 2000;
  size_t most = 0;
  for (const auto& of_one : capture_.tracees.running().vmas) most = std::max(most, of_one.size());
  return !context_.runs_on() && most >= kMany;
}

Result<void> FreezeWindow::freeze_once() {
  context_.phase("prepare");
  const DumpOptions& options = context_.options;
  CKPT_TRY_ASSIGN(proc::FrozenTree tree,
                  proc::FrozenTree::freeze(options.pid, options.freeze_timeout_us, context_.cancel));
  tree_.emplace(std::move(tree));
  CKPT_TRY(capture_.tracees.set_members(tree_->entries()));
  // What is left in flight is a blocker of the inventory.
  CKPT_TRY(capture_.tracees.drain_requests(
      *tree_, collected_.image.processes.empty() ? capture_.tracees.running() : collected_));
  context_.phase("freeze");
  if (asks_at_once()) capture_.plan->madvise().ask();
  return capture_.devices.checkpoint(*tree_);
}

/// A connection that came to be since the tree was collected last is held off too, and then its state is taken once
/// more.
Result<void> FreezeWindow::collect() {
  const capture::InventoryOptions how = context_.frozen_options(capture_.tracees.running(), capture_.plan->pool());
  for (bool again = true; again;) {
    CKPT_TRY_ASSIGN(collected_, capture::take_inventory(capture_.tracees.members(), how));
    again = false;
    if (context_.holds_connections()) {
      CKPT_TRY_ASSIGN(again, capture_.connections.hold(collected_.connections));
    }
  }
  return {};
}

/// What stands in the way for a moment only (a connection that nobody has accepted yet) passes while the tree goes on:
/// it is let go, and frozen anew a little later.
Result<void> FreezeWindow::freeze() {
  constexpr uint64_t kLongestPauseUs = 50'000;
  const DumpOptions& options = context_.options;
  const uint64_t deadline = monotonic_us() + options.freeze_timeout_us;
  outsiders_.emplace(capture_.tracees.running(), capture_.outsiders);
  for (uint64_t pause = 1'000;; pause = std::min(2 * pause, kLongestPauseUs)) {
    CKPT_TRY(freeze_once());
    CKPT_TRY(collect());
    if (collected_.blockers.empty()) break;
    if (!capture::all_pass(collected_.blockers) || !capture_.devices.empty() || monotonic_us() > deadline)
      return capture::blocked_error(options.pid, collected_.blockers);
    CKPT_TRY(context_.cancel.check());
    tree_->release();
    const uint64_t begin = tree_->frozen_at_us(), end = monotonic_us();
    tree_.reset();
    context_.stats().stops_us += end - begin;
    trace::interval(trace::Row::kTarget, "frozen, tried again", begin, end);
    capture_.connections.let_go();
    ::usleep(static_cast<useconds_t>(pause));
    if (context_.holds_connections()) CKPT_TRY(capture_.connections.hold(collected_.connections));
  }
  for (const std::string& note : collected_.notes) context_.progress.note(note);
  return {};
}

Result<void> FreezeWindow::describe() {
  store::TreeImage& tree = context_.manifest.tree;
  tree = std::move(collected_.image);
  if (context_.ends()) tree.packet_filter = capture_.connections.filter();
  tree.gpu = capture_.devices.driver().state();
  capture_.devices.owned().add_spaces(tree);
  CKPT_TRY(capture_.image.number_spaces(tree));
  context_.phase("inventory");
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    if (!tree.processes[i].zombie) CKPT_TRY(describe(i));
  }
  context_.phase("describe");
  return {};
}

Result<void> FreezeWindow::describe(size_t index) {
  store::TreeImage& tree = context_.manifest.tree;
  store::ProcessImage& image = tree.processes[index];
  Tracee& tracee = capture_.tracees.of(capture_.tracees.members()[index]);
  if (!tracee.gadgets || !proc::still_hold(tracee.pid, *tracee.gadgets)) {
    const size_t memory = image.memory_of < 0 ? index : static_cast<size_t>(image.memory_of);
    CKPT_TRY_ASSIGN(tracee.gadgets, proc::find_gadgets(tracee.pid, collected_.vmas[memory]));
  }
  CKPT_TRY_ASSIGN(proc::ParasiteArea area, proc::ParasiteArea::map(tracee.pid, tracee.pid, *tracee.gadgets));
  const proc::ParasiteArea& room = areas_.emplace(tracee.pid, std::move(area)).first->second;
  image.gpu_thread = capture_.devices.driver().restore_thread(tracee.pid);
  std::vector<std::string> notes;
  CKPT_TRY(capture::describe_inside(tree_->process(tracee.pid), room, collected_, tree, index,
                                    states_[tracee.pid].xstates, &*outsiders_, &notes));
  for (const std::string& note : notes)
    context_.progress.note("process " + std::to_string(tracee.pid) + ": " + note);
  return {};
}

Result<void> FreezeWindow::make_copies() {
  const bool snapshot = capture_.plan->snapshots();
  for (size_t i = 0; i < capture_.tracees.members().size(); ++i) {
    const store::ProcessImage& image = context_.manifest.tree.processes[i];
    if (image.zombie) continue;
    Tracee& tracee = capture_.tracees.of(capture_.tracees.members()[i]);
    const bool track = tracee.daemon && !tracee.userfault;
    proc::ParasiteArea& area = areas_.at(tracee.pid);
    if (image.memory_of < 0 && (snapshot || track)) {
      CKPT_TRY_ASSIGN(proc::BorrowedThread thread, proc::BorrowedThread::begin(area, tracee.pid));
      if (track) CKPT_TRY(make_tracker(i, tracee, thread));
      if (snapshot) CKPT_TRY(make_snapshot(tracee, thread));
      CKPT_TRY(thread.finish());
    }
    CKPT_TRY(area.unmap());
  }
  areas_.clear();
  context_.phase("snapshot");
  return {};
}

Result<void> FreezeWindow::make_tracker(size_t index, Tracee& tracee, proc::BorrowedThread& thread) {
  auto made = proc::make_write_tracker(thread, capture_.tracees.members()[index].pidfd.get());
  if (!made && made.error().code == Code::kNotFound) return std::move(made).error();
  if (!made) {
    context_.progress.note("writes cannot be tracked (" + made.error().text() + "): the next dump copies everything");
    return {};
  }
  tracee.userfault = std::move(*made);
  capture::track_mappings(tracee.userfault.get(), context_.manifest.tree.processes[index].maps);
  return {};
}

/// Without the memory for a fork the copy is made while the target is frozen: said, not hidden.
Result<void> FreezeWindow::make_snapshot(const Tracee& tracee, proc::BorrowedThread& thread) {
  auto snapshot = capture::Snapshot::take(thread, tracee.pid, *tracee.gadgets);
  if (snapshot) {
    states_[tracee.pid].snapshot.emplace(std::move(*snapshot));
    return {};
  }
  if (snapshot.error().code == Code::kNotFound) return std::move(snapshot).error();
  context_.progress.note("no copy-on-write snapshot of process " + std::to_string(tracee.pid) + " (" +
                         snapshot.error().text() + "): the tree stands still while it is copied");
  return {};
}

/// Processes side by side; but the pages of one that has very many are shared out among all threads.
Result<void> FreezeWindow::scan() {
  constexpr uint64_t kVeryMany = (uint64_t{512} << 20) / store::kPageSize;
  WorkerPool* const pool = capture_.plan->pool();
  std::vector<Process> others;
  CKPT_TRY(each_memory(context_.manifest.tree, [&](store::ProcessImage& image) -> Result<void> {
    const Process process{image, capture_.tracees.of(image.pid), states_[image.pid]};
    if (process.tracee.private_pages >= kVeryMany) return scan_process(process, pool);
    others.push_back(process);
    return {};
  }));
  CKPT_TRY(side_by_side(pool, others.size(), [&](size_t i) { return scan_process(others[i], nullptr); }));
  CKPT_TRY(scan_contents());
  context_.phase("scan");
  return {};
}

/// What is known of its writes, as the kernel and the process now are.
void FreezeWindow::judge_tracking(const Process& process, bool can_scan) {
  const auto& [image, tracee, state] = process;
  if (!can_scan && image.pid == context_.options.pid)
    context_.progress.note("this kernel cannot tell which pages were written (PAGEMAP_SCAN, 6.7): copying everything");
  // What is written to pinned pages from here on goes unseen, also once they are no longer pinned.
  const auto index = static_cast<size_t>(&image - context_.manifest.tree.processes.data());
  tracee.has_pinned_pages =
      capture_.devices.driver().holds(tracee.pid) || collected_.statuses[index][0].has_pinned_pages;
  if (!can_scan || tracee.has_pinned_pages) tracee.userfault.reset();
  if (!tracee.userfault) tracee.tracking = Tracking::kNone;
  state.armed = tracee.daemon && tracee.userfault;
}

Result<void> FreezeWindow::scan_process(const Process& process, WorkerPool* pool) {
  const auto& [image, tracee, state] = process;
  CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(image.pid));
  judge_tracking(process, pagemap.can_scan());
  const bool snapshot = state.snapshot.has_value(), tracked = tracee.tracked();
  if (snapshot) {
    std::vector<store::MemoryMap> live = capture::left_out_by_fork(image.maps);
    CKPT_TRY_ASSIGN(auto found, capture::scan_private(pagemap, live, ScanFor::kPopulated));
    state.plan = capture::plan_data(found, ScanFor::kPopulated, live);
  } else if (tracked) {
    CKPT_TRY(plan_changes(process, pagemap, pool));
  }
  // A snapshot is scanned later, but for what a fork leaves out; and iterations have protected the process already.
  const bool arm = state.armed && !(snapshot && tracked && !context_.stats().iterations.empty());
  if (!arm && (snapshot || tracked)) return {};
  const ScanFor what = !arm ? ScanFor::kPopulated : tracked ? ScanFor::kWritten : ScanFor::kProtected;
  CKPT_TRY_ASSIGN(auto found, capture::scan_private(pagemap, image.maps, what, pool));
  if (snapshot && tracked) capture::unite(tracee.changes, found);
  else if (!snapshot && !tracked) state.plan = capture::plan_data(found, ScanFor::kPopulated, image.maps);
  return {};
}

Result<void> FreezeWindow::plan_changes(const Process& process, const proc::Pagemap& pagemap, WorkerPool* pool) {
  const auto& [image, tracee, state] = process;
  CKPT_TRY_ASSIGN(auto found, capture::scan_private(pagemap, image.maps, ScanFor::kChanges, pool));
  capture::unite(tracee.changes, found);
  for (const proc::PageRegion& missed : capture_.precopy.missed(tracee.pid)) {
    CKPT_TRY_ASSIGN(auto populated, pagemap.scan(missed.start, missed.end));
    capture::unite(tracee.changes, populated);
  }
  state.plan = capture::plan_data(tracee.changes, ScanFor::kChanges, image.maps);
  return {};
}

Result<void> FreezeWindow::scan_huge_pages() {
  return each_memory(context_.manifest.tree, [&](store::ProcessImage& image) -> Result<void> {
    auto is_huge = [](const store::MemoryMap& map) { return map.kind == store::MappingKind::kHugePages; };
    if (std::none_of(image.maps.begin(), image.maps.end(), is_huge)) return {};
    CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(image.pid));
    capture::SpaceBlocks part{image.space, image.pid, -1, 0, {}};
    CKPT_TRY_ASSIGN(part.blocks, capture::plan_huge_pages(pagemap, image.maps));
    contents_.push_back(std::move(part));
    return {};
  });
}

Result<void> FreezeWindow::scan_contents() {
  CKPT_TRY(scan_huge_pages());
  auto add = [&](int space, uint64_t size, const capture::ContentSource& source) -> Result<void> {
    capture::SpaceBlocks part{space, source.pid, source.fd.get(), source.shift, {}};
    CKPT_TRY_ASSIGN(part.blocks, capture::plan_content(source.fd.get(), size));
    contents_.push_back(std::move(part));
    return {};
  };
  const store::TreeImage& tree = context_.manifest.tree;
  for (size_t i = 0; i < tree.shared_memory.size(); ++i) {
    if (tree.shared_memory[i].size != 0)
      CKPT_TRY(add(tree.shared_memory[i].space, tree.shared_memory[i].size, collected_.shared_memory[i]));
  }
  for (size_t i = 0; i < tree.files.size(); ++i) {
    if (tree.files[i].space >= 0) CKPT_TRY(add(tree.files[i].space, tree.files[i].size, collected_.ghosts[i]));
  }
  for (const store::MountedFilesystem* filesystem : filesystems_of(tree.namespaces)) {
    auto source = collected_.memory_files[filesystem->device].begin();
    for (const store::MemoryFile& file : filesystem->files) {
      if (file.has_bytes()) CKPT_TRY(add(file.space, file.size, *source++));
    }
  }
  return {};
}

/// Of private memory.
std::vector<capture::SpaceBlocks> FreezeWindow::parts_to_copy() const {
  std::vector<capture::SpaceBlocks> out;
  for (const store::ProcessImage& image : context_.manifest.tree.processes) {
    auto state = states_.find(image.pid);
    if (image.zombie || image.memory_of >= 0 || state == states_.end()) continue;
    for (const auto* blocks : {&state->second.plan.snapshot, &state->second.plan.live}) {
      if (!blocks->empty()) out.push_back({image.space, image.pid, -1, 0, *blocks});
    }
  }
  return out;
}

Result<void> FreezeWindow::copy() {
  copied_ = parts_to_copy();
  std::move(contents_.begin(), contents_.end(), std::back_inserter(copied_));
  capture::Staging* const staging = capture_.plan->staging();
  held_ = staging != nullptr && staging->fits(copied_) ? Held::kInStaging : Held::kInImage;
  // What is in the image cannot be taken back for a second window.
  if (held_ == Held::kInImage) CKPT_TRY(capture_.devices.owned().copy_now());
  context_.progress.begin("copy", capture::total_bytes(copied_));
  if (held_ == Held::kInStaging) CKPT_TRY(staging->read(copied_, capture_.plan->pool()));
  else CKPT_TRY(capture::copy_blocks(copied_, capture_.image.writer(), context_.copy_options()));
  context_.phase("copy");
  return {};
}

Result<void> FreezeWindow::sample() {
  if (!capture_.sample) return {};
  capture_.sample->clear();
  CKPT_TRY(each_memory(context_.manifest.tree, [&](store::ProcessImage& image) -> Result<void> {
    const Tracee& tracee = capture_.tracees.of(image.pid);
    if (!tracee.tracked() || states_[image.pid].snapshot) return {};
    capture_.sample->read({image.space, image.pid, -1, 0, capture::plan_unchanged(tracee.changes, image.maps)},
                          capture_.plan->pool());
    return {};
  }));
  context_.phase("sample");
  return {};
}

Result<void> FreezeWindow::write() {
  if (held_ != Held::kInStaging) return {};
  return capture_.plan->staging()->write(copied_, capture_.image.writer(), context_.copy_options());
}

/// The tree may stay frozen for longer: until it has ended.
void FreezeWindow::note_end() {
  const uint64_t begin = tree_->frozen_at_us(), end = monotonic_us();
  context_.stats().frozen_us = end - begin;
  trace::interval(trace::Row::kTarget, "frozen", begin, end);
}

void FreezeWindow::ask_later() {
  if (!asks_at_once()) capture_.plan->madvise().ask();
}

Result<void> FreezeWindow::end() {
  if (context_.runs_on()) return let_run();
  note_end();
  return {};
}

Result<void> FreezeWindow::let_run() {
  CaptureDevices& devices = capture_.devices;
  if (!devices.empty()) {
    CKPT_TRY(devices.give_back(&*tree_));
    context_.phase("gpu restore");
  }
  release();
  note_end();
  capture_.connections.let_go();
  CKPT_TRY(devices.attach());
  devices.count_held();
  if (!devices.owned().empty()) context_.phase("gpu attach");
  return {};
}

Result<void> FreezeWindow::finish_snapshots() {
  for (auto& [pid, state] : states_) {
    if (!state.snapshot) continue;
    CKPT_TRY_ASSIGN(uint64_t stood, state.snapshot->finish());
    context_.stats().stops_us += stood;
  }
  return {};
}

}  // namespace ckpt::engine
