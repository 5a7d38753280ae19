// The end of a capture: what can be done once the processes run again.
#include <signal.h>

#include <algorithm>
#include <future>

#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/base/trace.h"
#include "lib/engine/capture.h"
#include "lib/engine/rehearse.h"
#include "lib/proc/host.h"
#include "lib/state/plan_check.h"

namespace ckpt::engine {

using capture::ScanFor;

/// The pages of a snapshot: those that were written since the last round or the parent are copied.
Result<void> Capture::plan_snapshot(store::ProcessImage& image, Subject& process) {
  CKPT_TRY_ASSIGN(proc::Pagemap pages, proc::Pagemap::open(process.snapshot->pid()));
  CKPT_TRY_ASSIGN(auto found, capture::scan_private(pages, image.maps, ScanFor::kPopulated));
  process.plan.snapshot = capture::plan_data(found, ScanFor::kPopulated, image.maps).snapshot;
  if (!process.tracked) return {};
  if (process.changes.empty()) {
    // What the process has written since its snapshot counts too: that is copied once too often, and from the snapshot.
    CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(image.pid));
    CKPT_TRY_ASSIGN(process.changes, capture::scan_private(pagemap, image.maps, ScanFor::kChanges));
    if (ahead_) capture::unite(process.changes, ahead_->missed(image.pid));
  }
  capture::keep_unchanged(process.changes, process.plan.snapshot);
  return {};
}

/// What was found in the frozen window is written, then what needs no hurry: the snapshots, and which pages are as they
/// were.
Result<void> Capture::copy_rest() {
  CKPT_TRY(owned_.finish(manifest_.tree, *writer_));
  if (staged_) CKPT_TRY(staging_->write(copied_, *writer_, copy_options()));
  store::CaptureStats& stats = manifest_.stats;
  auto count = [&](const std::vector<capture::BlockPlan>& blocks) {
    stats.pages_copied += capture::count_data(blocks);
    stats.pages_unchanged += capture::count_unchanged(blocks);
  };
  for (const capture::Part& part : copied_) count(part.blocks);
  std::vector<capture::Part> snapshots, unchanged;
  CKPT_TRY(each_memory([&](store::ProcessImage& image, Subject& process) -> Result<void> {
    stats.pages_zero += process.plan.pages_zero;
    if (process.snapshot) {
      CKPT_TRY(plan_snapshot(image, process));
      count(process.plan.snapshot);
      snapshots.push_back({image.space, process.snapshot->pid(), -1, 0, std::move(process.plan.snapshot)});
    } else if (process.tracked) {
      std::vector<capture::BlockPlan> blocks = capture::plan_unchanged(process.changes, image.maps);
      count(blocks);
      unchanged.push_back({image.space, image.pid, -1, 0, std::move(blocks)});
    }
    return {};
  }));
  CKPT_TRY(capture::copy_blocks(unchanged, *writer_, copy_options()));
  if (!snapshots.empty()) {
    progress_.begin("copy", capture::total_bytes(snapshots));
    CKPT_TRY(copy_within_bounds(snapshots));
    CKPT_TRY(finish_snapshots());
  }
  stats.pages_scanned = stats.pages_copied + stats.pages_zero + stats.pages_unchanged;
  stats.bytes_memory = stats.pages_copied * store::kPageSize;
  for (const store::CaptureRound& round : stats.rounds) stats.bytes_memory += round.pages * store::kPageSize;
  phase(snapshots.empty() ? "store" : "copy snapshot");
  return {};
}

uint64_t Capture::faults() const {
  uint64_t sum = 0;
  for (const auto& [pid, process] : subjects_) {
    if (auto stat = proc::read_stat(pid)) sum += stat->minor_faults;
  }
  return sum;
}

/// Stops all processes that have snapshots. Not as a tree: the snapshots are children of theirs.
Result<void> Capture::halt(std::vector<proc::FrozenProcess>& halted) {
  for (const auto& [pid, process] : subjects_) {
    if (!process.snapshot) continue;
    auto frozen = proc::FrozenProcess::freeze(pid, options_.freeze_timeout_us, cancel_);
    if (!frozen && frozen.error().code == Code::kNotFound) continue;
    if (!frozen) return std::move(frozen).error();
    halted.push_back(std::move(*frozen));
  }
  return {};
}

/// Copies the snapshots while the tree runs. Every page that it writes meanwhile costs a copy: where that grows past
/// --max-cow the tree stands still until the rest is copied.
Result<void> Capture::copy_within_bounds(const std::vector<capture::Part>& parts) {
  auto copying = in_background([&] { return capture::copy_blocks(parts, *writer_, copy_options()); });
  const uint64_t faults_before = faults(), most = options_.max_cow / store::kPageSize;
  std::vector<proc::FrozenProcess> halted;
  Result<void> stopped;
  while (copying.wait_for(std::chrono::milliseconds(2)) == std::future_status::timeout) {
    if (!halted.empty() || !stopped || options_.max_cow == 0 || faults() - faults_before <= most) continue;
    stopped = halt(halted);
  }
  Result<void> copied = copying.get();
  if (!halted.empty()) {
    const uint64_t stood = monotonic_us() - halted[0].frozen_at_us();
    halted.clear();
    manifest_.stats.stops_us += stood;
    progress_.note("copy-on-write passed --max-cow (" + human_bytes(options_.max_cow) + "): the tree stood still for " +
                   human_us(stood) + " more");
  }
  CKPT_TRY(copied);
  return stopped;
}

Result<void> Capture::finish_snapshots() {
  for (auto& [pid, process] : subjects_) {
    if (!process.snapshot) continue;
    CKPT_TRY_ASSIGN(uint64_t stood, process.snapshot->finish());
    manifest_.stats.stops_us += stood;
  }
  return {};
}

void Capture::count_usage() {
  store::CaptureStats& stats = manifest_.stats;
  for (const auto& [pid, process] : subjects_) {
    const proc::Usage now = proc::read_usage(pid);
    auto since = [](uint64_t then, uint64_t later) { return later > then ? later - then : 0; };
    stats.target_faults += since(process.usage.faults, now.faults);
    stats.target_ran_us += since(process.usage.ran_us, now.ran_us);
    stats.target_waited_us += since(process.usage.waited_us, now.waited_us);
  }
}

Result<void> Capture::commit() {
  CKPT_TRY(cancel_.check());
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
  manifest_.host = {host.hostname,  host.kernel,    host.machine, host.boot_id,
                    host.cpu_model, host.cpu_flags, host.xcr0,    store::kPageSize};
  manifest_.kind = verb_ == Verb::kPreDump ? "pre-dump" : "dump";
  manifest_.stats.pages_zero += writer_->totals().pages_zero;
  count_usage();
  count_devices();
  // Not later: with the image's name the last thing is gone that would be undone.
  CKPT_TRY(restore::check_before_end(manifest_, !runs_on_));
  phase("write");
  return writer_->commit(manifest_, [this](const std::filesystem::path& dir) -> Result<void> {
    CKPT_TRY(check_advice());
    return options_.rehearse ? rehearse_image(dir) : Result<void>();
  });
}

/// The last thing before the image gets its name: until then the kernel shows the mappings beside the writing.
Result<void> Capture::check_advice() {
  CKPT_TRY(advice_watch_->finish());
  if (!advice_ || *advice_) return {};
  return fail(Code::kBusy, proc::describe_pid(options_.pid),
              "changed the advice on its mappings (madvise, mlock) meanwhile: try again");
}

/// With a difference there is no image, and the tree goes on.
Result<void> Capture::rehearse_image(const std::filesystem::path& dir) {
  auto found = rehearse(dir, store::Trust::kOwn, cancel_);
  phase("rehearse");
  for (const std::string& text : found ? found->left_out : std::vector<std::string>())
    progress_.note("not rehearsed: " + text);
  if (found && found->differences.empty()) return {};
  if (!found) {  // the image has not got its name yet
    auto renamed = [&](std::string& text) {
      if (const size_t at = text.find(dir.string()); at != std::string::npos)
        text.replace(at, dir.string().size(), options_.dir.string());
    };
    renamed(found.error().subject), renamed(found.error().message);
    std::for_each(found.error().causes.begin(), found.error().causes.end(), renamed);
  }
  Error error = found ? Error(Code::kUnsupported, options_.dir.string(),
                              "would not be restored as the process is: the image is not kept")
                      : std::move(found).error();
  if (found) error.causes = std::move(found->differences);
  return error;
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

/// The image is there whatever comes now; a script that fails keeps a tree alive that was to end.
Result<DumpReport> Capture::finish_tree() {
  if (runs_on_) {
    keep_tracking();
    if (auto done = act("post-dump"); !done) progress_.note(done.error().text());
    options_.actions.ready();
    return report("running");
  }
  CKPT_TRY(act("post-dump"));
  if (options_.after == DumpOptions::After::kLeaveStopped) {
    if (!devices_.empty()) CKPT_TRY(give_devices_back());
    for (const capture::Member& member : members_) ::kill(member.entry.pid, SIGSTOP);
    frozen_->release();
  } else {
    CKPT_TRY(end_target());
  }
  options_.actions.ready();
  return report(options_.after == DumpOptions::After::kLeaveStopped ? "stopped" : "ended");
}

Result<void> Capture::end_target() {
  CKPT_TRY(connections_.silence(now_.connections));
  auto ended = frozen_->kill();
  connections_.keep();
  if (ended) owned_.forget(), devices_.forget();
  if (ended || ended.error().code == Code::kNotFound) return {};
  return Error(std::move(ended).error())
      .with_target("running: the image is complete, but the process could not be ended");
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

}  // namespace ckpt::engine
