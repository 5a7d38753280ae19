#include "lib/engine/finish.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <system_error>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/text.h"
#include "lib/base/threads.h"
#include "lib/engine/rehearse.h"
#include "lib/proc/frozen_process.h"
#include "lib/proc/host.h"
#include "lib/proc/procfs.h"
#include "lib/proc/usage.h"
#include "lib/state/namespaces/entered.h"
#include "lib/state/plan_check.h"

namespace ckpt::engine {

using capture::ScanFor;

/// The pages of a snapshot: those that were written since the last iteration or the parent are copied.
Result<void> Finish::plan_snapshot(store::ProcessImage& image) {
  FrozenState& state = window_.of(image.pid);
  Tracee& tracee = capture_.tracees.of(image.pid);
  CKPT_TRY_ASSIGN(proc::Pagemap pages, proc::Pagemap::open(state.snapshot->pid()));
  CKPT_TRY_ASSIGN(auto found, capture::scan_private(pages, image.maps, ScanFor::kPopulated));
  state.plan.snapshot = capture::plan_data(found, ScanFor::kPopulated, image.maps).snapshot;
  if (!tracee.tracked()) return {};
  if (tracee.changes.empty()) {
    // What the process has written since its snapshot counts too: that is copied once too often, and from the snapshot.
    CKPT_TRY_ASSIGN(proc::Pagemap pagemap, proc::Pagemap::open(image.pid));
    CKPT_TRY_ASSIGN(tracee.changes, capture::scan_private(pagemap, image.maps, ScanFor::kChanges));
    capture::unite(tracee.changes, capture_.precopy.missed(image.pid));
  }
  capture::keep_unchanged(tracee.changes, state.plan.snapshot);
  return {};
}

Result<void> Finish::copy_deferred() {
  store::ImageWriter& writer = capture_.image.writer();
  CKPT_TRY(capture_.devices.owned().finish(context_.manifest.tree, writer));
  CKPT_TRY(window_.write());
  store::CaptureStats& stats = context_.stats();
  auto count = [&](const std::vector<capture::BlockPlan>& blocks) {
    stats.pages_copied += capture::count_data(blocks);
    stats.pages_unchanged += capture::count_unchanged(blocks);
  };
  for (const capture::SpaceBlocks& part : window_.copied()) count(part.blocks);
  std::vector<capture::SpaceBlocks> snapshots, unchanged;
  CKPT_TRY(each_memory(context_.manifest.tree, [&](store::ProcessImage& image) -> Result<void> {
    FrozenState& state = window_.of(image.pid);
    const Tracee& tracee = capture_.tracees.of(image.pid);
    stats.pages_zero += state.plan.pages_zero;
    if (state.snapshot) {
      CKPT_TRY(plan_snapshot(image));
      count(state.plan.snapshot);
      if (capture_.sample && tracee.tracked())
        capture_.sample->read({image.space, state.snapshot->pid(), -1, 0, state.plan.snapshot}, capture_.plan->pool());
      snapshots.push_back({image.space, state.snapshot->pid(), -1, 0, std::move(state.plan.snapshot)});
    } else if (tracee.tracked()) {
      std::vector<capture::BlockPlan> blocks = capture::plan_unchanged(tracee.changes, image.maps);
      count(blocks);
      unchanged.push_back({image.space, image.pid, -1, 0, std::move(blocks)});
    }
    return {};
  }));
  CKPT_TRY(capture::copy_blocks(unchanged, writer, context_.copy_options()));
  if (!snapshots.empty()) {
    context_.progress.begin("copy", capture::total_bytes(snapshots));
    CKPT_TRY(copy_snapshots(snapshots));
    CKPT_TRY(window_.finish_snapshots());
  }
  stats.pages_scanned = stats.pages_copied + stats.pages_zero + stats.pages_unchanged;
  stats.bytes_memory = stats.pages_copied * store::kPageSize;
  for (const store::CaptureIteration& iteration : stats.iterations)
    stats.bytes_memory += iteration.pages * store::kPageSize;
  context_.phase(snapshots.empty() ? "store" : "copy snapshot");
  return {};
}

uint64_t Finish::faults() const {
  uint64_t sum = 0;
  for (const auto& [pid, tracee] : capture_.tracees.all()) {
    if (auto stat = proc::read_stat(pid)) sum += stat->minor_faults;
  }
  return sum;
}

/// Not as a tree: the snapshots are children of theirs.
Result<void> Finish::freeze_snapshotted(std::vector<proc::FrozenProcess>& frozen) {
  for (const auto& [pid, state] : window_.states()) {
    if (!state.snapshot) continue;
    auto process = proc::FrozenProcess::freeze(pid, context_.options.freeze_timeout_us, context_.cancel);
    if (!process && process.error().code == Code::kNotFound) continue;
    if (!process) return std::move(process).error();
    frozen.push_back(std::move(*process));
  }
  return {};
}

/// Copies the snapshots while the tree runs. Every page that it writes meanwhile costs a copy: where that grows past
/// --max-cow the tree is frozen until the rest is copied.
Result<void> Finish::copy_snapshots(const std::vector<capture::SpaceBlocks>& parts) {
  const uint64_t limit = context_.options.max_cow;
  auto copying = in_background(
      [&] { return capture::copy_blocks(parts, capture_.image.writer(), context_.copy_options()); });
  const uint64_t faults_before = faults(), most = limit / store::kPageSize;
  std::vector<proc::FrozenProcess> frozen;
  std::optional<InAHurry> hurry;
  Result<void> stopped;
  while (copying.wait_for(std::chrono::milliseconds(2)) == std::future_status::timeout) {
    if (!frozen.empty() || !stopped || limit == 0 || faults() - faults_before <= most) continue;
    hurry.emplace(context_.options);
    stopped = freeze_snapshotted(frozen);
  }
  Result<void> copied = copying.get();
  if (!frozen.empty()) {
    const uint64_t stood = monotonic_us() - frozen[0].frozen_at_us();
    frozen.clear();
    context_.stats().stops_us += stood;
    context_.progress.note("copy-on-write passed --max-cow (" + human_bytes(limit) + "): the tree stood still for " +
                           human_us(stood) + " more");
  }
  CKPT_TRY(copied);
  return stopped;
}

void Finish::count_usage() {
  store::CaptureStats& stats = context_.stats();
  for (const auto& [pid, tracee] : capture_.tracees.all()) {
    const proc::Usage now = proc::read_usage(pid);
    auto since = [](uint64_t then, uint64_t later) { return later > then ? later - then : 0; };
    stats.target_faults += since(tracee.usage.faults, now.faults);
    stats.target_ran_us += since(tracee.usage.ran_us, now.ran_us);
    stats.target_waited_us += since(tracee.usage.waited_us, now.waited_us);
  }
}

/// Register areas of threads, what lies in pipes, sockets and rings.
Result<void> Finish::write_contents() {
  store::ImageWriter& writer = capture_.image.writer();
  store::TreeImage& tree = context_.manifest.tree;
  for (store::ProcessImage& image : tree.processes) {
    if (image.zombie) continue;
    const FrozenState& state = window_.of(image.pid);
    for (size_t i = 0; i < image.threads.size(); ++i) {
      CKPT_TRY_ASSIGN(image.threads[i].xstate_offset, writer.append_xstate(state.xstates[i]));
    }
  }
  for (size_t i = 0; i < tree.pipes.size(); ++i) {
    CKPT_TRY_ASSIGN(tree.pipes[i].content_offset, writer.append_pipe(window_.collected().pipe_contents[i]));
  }
  for (size_t i = 0; i < tree.sockets.size(); ++i) {
    CKPT_TRY_ASSIGN(tree.sockets[i].content_offset, writer.append_pipe(window_.collected().socket_contents[i]));
  }
  for (size_t i = 0; i < tree.io_urings.size(); ++i) {
    CKPT_TRY_ASSIGN(tree.io_urings[i].content_offset, writer.append_pipe(window_.collected().io_uring_contents[i]));
  }
  for (size_t i = 0; i < tree.aio_contexts.size(); ++i) {
    CKPT_TRY_ASSIGN(tree.aio_contexts[i].content_offset, writer.append_pipe(window_.collected().aio_contents[i]));
  }
  return {};
}

Result<void> Finish::commit() {
  CKPT_TRY(context_.cancel.check());
  CKPT_TRY(write_contents());
  store::Manifest& manifest = context_.manifest;
  CKPT_TRY_ASSIGN(proc::Host host, proc::read_host());
  manifest.host = {host.hostname,  host.kernel,    host.machine, host.boot_id,
                   host.cpu_model, host.cpu_flags, host.xcr0,    store::kPageSize};
  if (context_.options.together != nullptr) manifest.job = context_.options.together->part();
  manifest.kind = context_.verb == CaptureContext::Verb::kPreDump ? "pre-dump" : "dump";
  manifest.stats.pages_zero += capture_.image.writer().totals().pages_zero;
  count_usage();
  capture_.devices.count();
  // Not later: with the image's name the last thing is gone that would be undone.
  CKPT_TRY(restore::check_before_end(manifest, !context_.runs_on()));
  context_.phase("write");
  Together* const together = context_.options.together;
  CKPT_TRY(capture_.image.writer().commit(manifest, [&](const std::filesystem::path& dir) -> Result<void> {
    CKPT_TRY(check_madvise());
    CKPT_TRY(validate(dir));
    if (context_.options.rehearse) CKPT_TRY(rehearse_image(dir));
    if (context_.options.publish) {
      CKPT_TRY(context_.options.publish(dir));
      context_.phase("upload");
    }
    return together != nullptr ? together->durable() : Result<void>();
  }));
  return together != nullptr ? together->commit(context_.options.dir, manifest, context_.progress) : Result<void>();
}

/// The last thing before the image gets its name: until then the kernel shows the mappings beside the writing.
Result<void> Finish::check_madvise() {
  CKPT_TRY_ASSIGN(const bool unchanged, capture_.plan->madvise().unchanged());
  if (unchanged) return {};
  return fail(Code::kBusy, proc::describe_pid(context_.options.pid),
              "changed the advice on its mappings (madvise, mlock) meanwhile: try again");
}

/// The pages of the sample with what the image and its parents have of them. With a difference there is no such image,
/// and `differs` says why: so it does where a page that the image leans on cannot be had.
Result<void> Finish::validate(const std::filesystem::path& dir) {
  if (!capture_.sample || capture_.sample->empty()) return {};
  auto compare = [&]() -> Result<capture::PageSample::Compared> {
    CKPT_TRY_ASSIGN(const auto image, store::ImageReader::open(dir));
    return capture_.sample->compare(*image, context_.options.workers);
  };
  auto found = compare();
  context_.phase("validate");
  if (found) capture_.validated = *found;
  if (found && found->different == 0) return {};
  const bool is_why = found || found.error().code == Code::kCorrupt || found.error().code == Code::kNotFound ||
                      found.error().code == Code::kIo;
  if (!is_why) return std::move(found).error();
  if (!found) {
    capture_.differs = "a page that is to be unchanged cannot be had from the images: " + found.error().text();
  } else {
    int pid = 0;
    for (const store::ProcessImage& image : context_.manifest.tree.processes) {
      if (image.space == static_cast<int>(found->first >> store::kSpaceShift)) pid = image.pid;
    }
    capture_.differs = fmt::format("{} of {} pages that are to be unchanged are not as the images have them, the first "
                                   "at {:#x} of process {}",
                                   found->different, found->pages,
                                   found->first & ((uint64_t{1} << store::kSpaceShift) - 1), pid);
  }
  return Error(Code::kMismatch, context_.options.dir.string(), capture_.differs)
      .with_hint("dump --no-prev --iterations 0 relies on no write tracking and on no other image");
}

/// With a difference there is no image, and the tree goes on.
Result<void> Finish::rehearse_image(const std::filesystem::path& dir) {
  auto found = rehearse(dir, store::Trust::kOwn, context_.cancel);
  context_.phase("rehearse");
  for (const std::string& text : found ? found->left_out : std::vector<std::string>())
    context_.progress.note("not rehearsed: " + text);
  if (found && found->differences.empty()) return {};
  const std::string name = context_.options.dir.string();
  if (!found) {  // the image has not got its name yet
    auto renamed = [&](std::string& text) {
      if (const size_t at = text.find(dir.string()); at != std::string::npos)
        text.replace(at, dir.string().size(), name);
    };
    renamed(found.error().subject), renamed(found.error().message);
    std::for_each(found.error().causes.begin(), found.error().causes.end(), renamed);
  }
  Error error = found
                    ? Error(Code::kUnsupported, name, "would not be restored as the process is: the image is not kept")
                    : std::move(found).error();
  if (found) error.causes = std::move(found->differences);
  return error;
}

/// To the tracking daemons, until the next capture.
void Finish::hand_over_tracking() {
  std::error_code ec;
  const DumpOptions& options = context_.options;
  capture::TrackedImage image{
      options.published_as.empty() ? std::filesystem::canonical(options.dir, ec)
                                   : std::filesystem::path(options.published_as),
      context_.manifest.id};
  for (const capture::Member& member : capture_.tracees.members()) {
    auto state = window_.states().find(member.entry.pid);
    if (state == window_.states().end() || !state->second.armed) continue;
    Tracee& tracee = capture_.tracees.of(member);
    auto kept = tracee.daemon->hand_over(tracee.key, member.pidfd.get(), tracee.userfault.get(), image);
    if (!kept) context_.progress.note(kept.error().text() + ": the next dump copies everything");
    state->second.armed = kept.has_value();
  }
}

/// A script that fails keeps a tree alive that was to end.
Result<DumpReport> Finish::end_tree() {
  const Actions& actions = context_.options.actions;
  if (context_.runs_on()) {
    hand_over_tracking();
    if (auto done = context_.act("post-dump"); !done) context_.progress.note(done.error().text());
    actions.ready();
    return report("running");
  }
  CKPT_TRY(context_.act("post-dump"));
  if (context_.ends()) {
    if (ends_with_init()) return end_with_init();
    CKPT_TRY(kill_tree());
  } else {
    if (!capture_.devices.empty()) CKPT_TRY(window_.let_go());
    for (const capture::Member& member : capture_.tracees.members()) ::kill(member.entry.pid, SIGSTOP);
    CKPT_TRY(window_.let_go());
  }
  actions.ready();
  return report(context_.ends() ? "ended" : "stopped");
}

bool Finish::ends_with_init() const {
  return state::entered() != nullptr && state::entered()->end_init && context_.options.pid == 1;
}

/// The sockets are silent by now, and nothing that follows can fail but the end itself.
Result<void> Finish::hand_over() {
  if (!context_.options.hand_over) return {};
  HandOver what;
  const store::TreeImage& tree = context_.manifest.tree;
  for (size_t i = 0; i < tree.processes.size(); ++i) {
    const capture::Member& member = capture_.tracees.members()[i];
    const store::ProcessImage& process = tree.processes[i];
    if (!process.zombie) what.processes.push_back({member.entry.pid, member.pidfd.get(), process.stopped});
  }
  what.frozen_at_us = window_.frozen_at_us();
  what.bytes_frozen = capture::total_bytes(window_.copied());
  Result<void> done = context_.options.hand_over(what);
  // Where nobody knows whether the tree runs elsewhere by now, its peers must not hear of it from here.
  if (!done && done.error().code == Code::kTargetAltered) capture_.connections.keep();
  return done;
}

/// All that is left to do is done before, and told of by whoever ran the worker.
Result<DumpReport> Finish::end_with_init() {
  CKPT_TRY(capture_.connections.silence(window_.collected().connections));
  CKPT_TRY(hand_over());
  capture_.connections.keep();
  capture_.devices.forget();
  DumpReport out = report("ended");
  if (context_.options.kept) context_.options.kept();
  if (context_.options.before_common_end) context_.options.before_common_end(out);
  CKPT_TRY(state::entered()->end_init());
  return out;
}

Result<void> Finish::kill_tree() {
  CKPT_TRY(capture_.connections.silence(window_.collected().connections));
  CKPT_TRY(hand_over());
  if (context_.options.kept) context_.options.kept();
  if (state::entered() != nullptr && state::entered()->may_end) {
    DumpReport told = report("ended");
    if (context_.options.before_common_end) context_.options.before_common_end(told);
    context_.manifest = std::move(told.manifest);
    state::entered()->may_end();
  }
  auto ended = window_.kill();
  capture_.connections.keep();
  if (ended) capture_.devices.forget();
  if (ended || ended.error().code == Code::kNotFound) return {};
  return Error(std::move(ended).error())
      .with_target("running: the image is complete, but the process could not be ended");
}

DumpReport Finish::report(std::string target_state) {
  DumpReport out;
  out.totals = capture_.image.writer().totals();
  out.pages_validated = capture_.validated.pages;
  out.tracked = capture_.tracees.any_tracked(), out.armed = window_.of(context_.options.pid).armed;
  out.manifest = std::move(context_.manifest);
  out.dir = context_.options.dir;
  out.target_state = std::move(target_state);
  return out;
}

}  // namespace ckpt::engine
