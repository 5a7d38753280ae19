#include "lib/engine/restore.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "lib/base/clock.h"
#include "lib/base/replace_file.h"
#include "lib/base/trace.h"
#include "lib/engine/device_restore.h"
#include "lib/engine/owner_rights.h"
#include "lib/engine/pid_namespace.h"
#include "lib/engine/restore_tree.h"
#include "lib/memory/common.h"
#include "lib/state/attributes/restore.h"
#include "lib/state/files/put_back.h"
#include "lib/state/namespaces/user.h"
#include "lib/store/description.h"
#include "lib/store/image.h"

namespace ckpt::engine {

namespace {

/// Appears whole under its name, for a reader may be waiting for it; goes away again if the restore fails after all.
class PidFile {
 public:
  static Result<PidFile> write(const std::filesystem::path& path, int pid) {
    PidFile out;
    if (path.empty()) return out;
    CKPT_TRY(io::replace_file(path, fmt::format("{}\n", pid), {0600, false}));
    out.path_ = path;
    return out;
  }
  PidFile(PidFile&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  PidFile& operator=(PidFile&&) = delete;
  ~PidFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  void keep() { path_.clear(); }

 private:
  PidFile() = default;
  std::filesystem::path path_;
};

/// What a dry run reports: nothing was filled, so the figures are those of the image.
void count_memory(const store::ImageReader& image, RestoreReport& report) {
  for (const auto& block : image.blocks()) report.pages += static_cast<uint64_t>(__builtin_popcount(block.data_mask));
  report.bytes = report.pages * store::kPageSize;
}

/// Before the release: afterwards the processes run, and what could still fail must not make them seem not to.
RestoreReport describe(const store::ImageReader& image, const restore::Totals& totals) {
  RestoreReport report;
  report.pid = totals.pid;
  report.comm = image.manifest().tree.root().threads[0].comm;
  report.processes = totals.processes;
  report.threads = totals.threads, report.mappings = totals.mappings, report.descriptors = totals.descriptors;
  report.pages = totals.pages, report.bytes = totals.bytes, report.bytes_on_demand = totals.bytes_on_demand;
  return report;
}

/// In a job all are let go, or none is left.
Result<void> let_go(restore::Rebuild& rebuild, Together* together) {
  if (together == nullptr) return rebuild.release();
  CKPT_TRY(together->made());
  // Before a packet leaves anywhere: one that is dropped comes again much later.
  CKPT_TRY(rebuild.let_packets_pass());
  CKPT_TRY(together->opened());
  const auto built = rebuild.built();
  Result<void> released = rebuild.release();
  const bool runs = released.has_value();
  released = together->released(std::move(released));
  if (runs && !released) {
    for (const auto& process : built) ::kill(process.pid, SIGKILL);
  }
  return released;
}

/// Files come first: no member of a job runs while another one's may still fail. A migration has its verdict by then:
/// the source may have the same files, and would go on with them. `cancel`: until they are put back.
Result<void> release(restore::Rebuild& rebuild, Together* together, ProgressSink& progress, const Cancel& cancel) {
  CKPT_TRY_ASSIGN(const size_t files, rebuild.put_back_files(cancel));
  Result<void> released = let_go(rebuild, together);
  if (!released && files != 0)
    progress.note(fmt::format("{} been put back, and {} as the image has {}", files == 1 ? "a file has" : "files have",
                              files == 1 ? "stays" : "stay", files == 1 ? "it" : "them"));
  return released;
}

/// What leads elsewhere is what comes from outside the tree.
Result<void> replace_outputs(const std::map<int, int>& outputs, store::ImageReader& image,
                             state::ExternalOptions& external) {
  if (outputs.empty()) return {};
  store::TreeImage tree = image.manifest().tree;
  for (const auto& [number, given] : outputs) {
    const auto found = std::find_if(tree.descriptors.begin(), tree.descriptors.end(),
                                    [&](const store::Descriptor& d) { return d.is_open_as(0, number); });
    if (found == tree.descriptors.end())
      return fail(Code::kNotFound, fmt::format("descriptor {}", number), "was not open in the first process");
    if (!found->external.starts_with("output ")) {
      store::Descriptor elsewhere;
      elsewhere.kind = store::DescriptorKind::kExternal;
      elsewhere.fds = found->fds, elsewhere.flags = found->flags;
      elsewhere.external = fmt::format("output {}", number);
      *found = std::move(elsewhere);
    }
    external.given[found->external] = given;
  }
  store::describe_anew(image, std::move(tree));
  return {};
}

/// Process 1 of a new pid namespace is a child of a ckpt that ends: a signal at its parent's end would be its own.
void outlive_ckpt(const RestoreOptions& options, store::ImageReader& image, ProgressSink& progress) {
  const store::ProcessImage& root = image.manifest().tree.root();
  const bool ends_with_ckpt = options.placed && options.detach && !options.sibling && root.pid == 1;
  if (!ends_with_ckpt || !restore::hears_of_parents_end(root)) return;
  progress.note(
      "process 1 gets no signal at its parent's end (PR_SET_PDEATHSIG) any more: its parent is ckpt, which ends");
  store::TreeImage tree = image.manifest().tree;
  tree.processes[0].parent_death_signal = 0;
  for (store::Thread& thread : tree.processes[0].threads) thread.parent_death_signal = 0;
  store::describe_anew(image, std::move(tree));
}

/// The processes run: nothing that is said or measured now can fail any more.
template <class Work>
void afterwards(Work work) noexcept {
  try {
    work();
  } catch (const std::exception&) {  // no memory: they run all the same
  }
}

}  // namespace

Result<RestoreReport> restore(const RestoreOptions& options, ProgressSink& progress, const Cancel& cancel) {
  ::signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would let the kernel reap the child before we ask for it
  Stopwatch watch, total;
  const bool lazily = options.lazy && !options.dry_run;
  CKPT_TRY_ASSIGN(std::unique_ptr<store::ImageReader> image,
                  store::ImageReader::open_description(options.image, lazily,
                                                       options.trust ? store::Trust::kAnybody : store::Trust::kOwn));
  if (options.rights_of_owner) CKPT_TRY(refuse_what_is_roots(image->manifest().tree, options.image));
  const store::Namespaces& namespaces = image->manifest().tree.namespaces;
  if (!options.placed && (!namespaces.own.empty() || !namespaces.further.empty()))
    return fail(Code::kUnsupported, options.image.string(), "is of processes in namespaces of their own");
  if (options.common != nullptr && options.common->image_id() != image->manifest().id)
    return fail(Code::kMismatch, options.image.string(), "is another image now than when its pages were read");
  if (image->manifest().tree.namespaces.has("cgroup") && state::tree_cgroup_namespace() < 0)
    progress.note("no cgroup namespace of their own is made: the processes see the whole paths of their groups");
  restore::Options how;
  if (!options.addresses.empty()) {
    store::TreeImage tree = image->manifest().tree;
    CKPT_TRY(restore::map_addresses(options.addresses, tree.sockets));
    store::describe_anew(*image, std::move(tree));
  }
  if (!options.files_root.empty()) {
    store::TreeImage tree = image->manifest().tree;
    // Of a job's parts some may have none.
    if (options.together == nullptr && restore::content_names(tree).empty())
      return fail(Code::kUsage, "--files-root", "the image has the content of no file (dump --files takes it along)");
    restore::move_contents(tree, options.files_root.string());
    store::describe_anew(*image, std::move(tree));
  }
  how.external = options.external;
  CKPT_TRY(replace_outputs(options.outputs, *image, how.external));
  outlive_ckpt(options, *image, progress);
  CKPT_TRY(image->check_pinned_pages());
  // Device memory is filled from here, not by the lazy-pages daemon.
  if (!lazily || !image->manifest().tree.devices.empty()) CKPT_TRY(image->load_pages());
  const uint64_t open_us = trace::phase(watch, "open");
  how.parent_stays = !options.detach;
  how.sibling = options.sibling;
  how.cgroups = options.cgroups;
  how.lazy = lazily;
  how.common = options.common;
  how.lazy_log = options.lazy_log, how.lazy_fate = options.lazy_fate;
  how.allow_changed = options.allow_changed;
  how.drop_labels = options.drop_labels;
  how.label_profile = options.label_profile;
  how.may_change_labels = !options.rights_of_owner;
  how.dry_run = options.dry_run;
  how.force_files = options.force_files;
  CKPT_TRY_ASSIGN(std::unique_ptr<restore::Rebuild> rebuild, restore::Rebuild::prepare(*image, how, progress));
  CKPT_TRY_ASSIGN(DeviceRestore devices, DeviceRestore::prepare(image->manifest().tree, options.gpu));
  RestoreReport report = describe(*image, rebuild->totals());
  auto add_phases = [&] {
    report.phases_us.emplace_back("open", open_us);
    const auto& phases = rebuild->totals().phases_us;
    report.phases_us.insert(report.phases_us.end(), phases.begin(), phases.end());
  };
  auto act = [&](const char* action) {
    return options.actions.run(action, rebuild->totals().pid, std::filesystem::absolute(options.image), cancel);
  };
  uint64_t gpu_us = 0;
  if (!options.dry_run) {
    CKPT_TRY(act("pre-restore"));
    CKPT_TRY(rebuild->build(cancel));
    CKPT_TRY(act("post-restore"));
    CKPT_TRY_ASSIGN(PidFile pidfile, PidFile::write(options.pidfile, number_outside(rebuild->totals().pid)));
    report = describe(*image, rebuild->totals());
    report.pid_outside = number_outside(report.pid);
    add_phases();
    watch.lap_us();
    if (!devices.empty()) {
      CKPT_TRY(devices.run());
      gpu_us = trace::phase(watch, "gpu");
    }
    if (options.may_run) CKPT_TRY(options.may_run(report.pid, report.pid_outside));
    // Who has been given the processes of a migration makes them: the source has ended them by then.
    const Cancel never;
    CKPT_TRY(release(*rebuild, options.together, progress, options.may_run ? never : cancel));
    if (options.runs) options.runs();
    if (!devices.empty() && !image->manifest().tree.devices.empty()) {
      CKPT_TRY(devices.fill(*image, options.lazy, cancel));
      gpu_us += trace::phase(watch, "gpu fill");
    }
    pidfile.keep();
    afterwards([&] {
      if (auto done = act("post-resume"); !done) progress.note(done.error().text());
    });
    afterwards([&] { options.actions.ready(); });
    afterwards([&] {
      if (gpu_us != 0) report.phases_us.emplace_back("gpu", gpu_us);
      report.phases_us.emplace_back("release", trace::phase(watch, "release"));
    });
  } else {
    add_phases();
    count_memory(*image, report);
  }
  report.total_us = total.elapsed_us();
  return report;
}

}  // namespace ckpt::engine
