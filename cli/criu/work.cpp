#include "cli/criu/work.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <optional>
#include <string_view>

#include "cli/criu/images.h"
#include "cli/criu/verdict.h"
#include "cli/gpu_flags.h"
#include "cli/owner_rights.h"
#include "lib/base/text.h"
#include "lib/engine/beside.h"
#include "lib/engine/check.h"
#include "lib/engine/dump.h"
#include "lib/engine/placement.h"

namespace ckpt::cli::criu {

namespace {

namespace fs = std::filesystem;

Result<fs::path> existing_folder(const fs::path& path, const char* option) {
  std::error_code ec;
  fs::path out = fs::canonical(path, ec);
  if (ec) return sys_error(ec.value(), path.string(), fmt::format("cannot be used as {}", option));
  if (!fs::is_directory(out, ec)) return fail(Code::kUsage, path.string(), "is no folder");
  return out;
}

/// criu's --prev-images-dir: the folder of another dump, seen from that of this one.
Result<fs::path> parent_image(const Options& options) {
  if (options.prev.empty()) return fs::path();
  const fs::path folder = (options.images_dir / options.prev).lexically_normal();
  const fs::path image = find_image(folder);
  std::error_code ec;
  if (!fs::exists(image, ec)) {
    return Error(Code::kNotFound, folder.string(), "holds no image of an earlier dump")
        .with_hint("--prev-images-dir is seen from the folder that -D names");
  }
  if (fs::equivalent(image, image_in(options.images_dir), ec))
    return fail(Code::kUsage, folder.string(), "is the folder of the new image, which would replace its own parent");
  return image;
}

/// Scripts are found from where criu was started, not from its work folder.
std::vector<std::string> absolute(const std::vector<std::string>& files) {
  std::vector<std::string> out;
  std::error_code ec;
  for (const std::string& file : files) out.push_back(fs::absolute(file, ec).string());
  return out;
}

engine::Actions actions(const Task& task) {
  engine::Actions out;
  out.scripts = task.options.action_scripts;
  out.status_fd = task.options.status_fd;
  out.notify = task.notify;
  return out;
}

Result<engine::DumpOptions> dump_options(const Task& task, bool pre_dump) {
  using After = engine::DumpOptions::After;
  const Options& options = task.options;
  engine::DumpOptions out;
  out.pid = options.pid;
  out.dir = image_in(options.images_dir);
  CKPT_TRY_ASSIGN(out.prev, parent_image(options));
  out.no_prev = options.prev.empty();  // what criu is not told of is no parent
  out.external.terminals = options.shell_job;
  out.external.adopt_terminals = options.orphan_terminals && !options.shell_job;
  out.external.pipes = state::ExternalPipes::kKeep;  // criu takes them in any case
  out.external.memory = state::ExternalMemory::kCopy;  // as criu does
  if (options.ghost_limit != 0) out.ghost_limit = options.ghost_limit;
  out.sockets.tcp_established = options.tcp_established;
  out.sockets.tcp_close = options.tcp_close;
  out.sockets.external_unix = options.external_unix;
  out.external_mounts = {options.external_mounts, true};
  out.empty_network = options.empty_network || options.external_network;
  CKPT_TRY_ASSIGN(out.gpu, gpu_options({}));
  out.actions = actions(task);
  std::error_code ec;
  out.force = !fs::is_empty(out.dir, ec) && !ec;  // criu writes over what an earlier dump has left
  out.freeze_timeout_us = static_cast<uint64_t>(options.timeout_s * 1e6);
  out.after = pre_dump || options.leave_running ? After::kLeaveRunning
              : options.leave_stopped           ? After::kLeaveStopped
                                                : After::kEnd;
  return out;
}

/// The image is there, and the processes are what they are to be: nothing of this can fail it any more.
void afterwards(const Task& task, const engine::DumpReport& report) {
  const DumpStatistics statistics = count(report);
  if (auto written = write_statistics(".", statistics); !written) task.log.note(written.error().text());
  task.log.info(fmt::format("image {}: {} written, frozen for {}; the process: {}", report.dir.string(),
                            human_bytes(report.manifest.stats.bytes_written), human_us(statistics.frozen_us),
                            report.target_state));
  if (!task.options.display_stats) return;
  fmt::print(
      "Displaying dump stats:\nFreezing time: {} us\nFrozen time: {} us\nMemory dump time: {} us\n"
      "Memory write time: {} us\nMemory pages scanned: {}\nMemory pages skipped from parent: {}\n"
      "Memory pages written: {}\nLazy memory pages: 0\n",
      statistics.freezing_us, statistics.frozen_us, statistics.memdump_us, statistics.memwrite_us,
      statistics.pages_scanned, statistics.pages_skipped_parent, statistics.pages_written);
}

/// Features of `criu check --feature` that stand for something that ckpt can do wherever it runs.
constexpr std::array kFeatures = {"mnt_id",           "timerfd",       "fdinfo_lock",      "seccomp_suspend",
                                  "seccomp_filters",  "loginuid",      "tcp_half_closed",  "can_map_vdso",
                                  "sk_unix_file",     "net_diag_raw",  "kcmp_epoll",       "network_lock_nftables",
                                  "sockopt_buf_lock", "memfd_hugetlb", "openat2",          "get_rseq_conf",
                                  "aio_remap",        "nftables",      "apparmor_stacking"};
/// Those that a feature of this host decides, by the verb and the name that `ckpt check` gives it.
struct HostFeature {
  const char* name;
  const char* verb;
  const char* host;
};
constexpr std::array kHostFeatures = {HostFeature{"mem_dirty_track", "dump", "PAGEMAP_SCAN"},
                                      HostFeature{"uffd", "restore", "userfaultfd"},
                                      HostFeature{"uffd-noncoop", "restore", "userfaultfd"},
                                      HostFeature{"clone3_set_tid", "restore", "CAP_CHECKPOINT_RESTORE"},
                                      HostFeature{"ns_pid", "restore", "CAP_CHECKPOINT_RESTORE"}};

/// By a worker in the namespaces of the process, which ends with the tree where that has the first process of a pid
/// namespace.
Result<void> capture_beside(const Task& task, const engine::Beside& there, engine::DumpOptions& options,
                            const std::function<Result<void>(const bool&)>& work) {
  const Verdict verdict;
  options.pid = there.inside;
  bool told = false;
  options.before_common_end = [&](const engine::DumpReport& report) { afterwards(task, report), told = true; };
  auto inside = [&]() -> int {
    auto done = work(told);
    if (done) return 0;
    verdict.set(done.error());
    return 1;
  };
  CKPT_TRY_ASSIGN(const int code, engine::run_beside(there, inside, [&] { options.actions.ready(); }));
  return code == 0 ? Result<void>() : verdict.get();
}

Result<engine::RestoreOptions> restore_options(const Task& task) {
  const Options& options = task.options;
  engine::RestoreOptions out;
  out.image = find_image(options.images_dir);
  out.pidfile = options.pidfile;
  out.detach = options.detach && options.exec_command.empty();
  out.sibling = options.sibling;
  out.external.terminals = options.shell_job;
  // As criu has it: what nobody gives has lost its other end.
  out.external.pipes = options.shell_job ? state::ExternalPipes::kKeep : state::ExternalPipes::kEnded;
  out.external.given = options.inherited;
  out.external.take_master = task.take_master;
  out.label_profile = options.label_profile;
  out.cgroups.leave = options.cgroups == Cgroups::kLeave;
  for (const CgroupRoot& root : options.cgroup_roots)
    out.cgroups.roots.push_back({root.every ? "*" : root.controllers, root.path});
  CKPT_TRY_ASSIGN(out.gpu, gpu_options({}));
  out.actions = actions(task);
  return out;
}

Result<Restored> restore_here(const engine::RestoreOptions& how, const Task& task) {
  CKPT_TRY_ASSIGN(const engine::RestoreReport report, engine::restore(how, task.log, task.cancel));
  return Restored{report.pid_outside, report.pid, static_cast<int>(report.processes), -1, count(report)};
}

/// In other namespaces, by a worker that is in them. Whoever asked is told when they are there.
Result<Restored> restore_placed(engine::RestoreOptions how, const engine::Placement& placement,
                                const engine::NamespacePlan& plan, const store::TreeImage& tree, const Task& task) {
  const Verdict verdict;
  void* memory = ::mmap(nullptr, sizeof(Restored), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return sys_error("", "cannot share memory with a worker");
  auto& shared = *new (memory) Restored();
  if (task.notify && plan.makes_init) {
    how.actions.notify = [&](const char* action, int pid) -> Result<void> {
      CKPT_TRY(task.notify(action, pid));
      if (action != std::string_view("pre-restore")) return {};
      return task.notify("setup-namespaces", pid);
    };
  }
  auto work = [&]() -> int {
    auto done = restore_here(how, task);
    if (done) shared = *done;
    if (done && (how.detach || plan.makes_init)) return 0;
    if (done) {  // a child of this worker's, which waits for it
      auto end = engine::supervise(done->pid_inside, task.cancel);
      if (end) return shared.status = end->shell_status(), 0;
      verdict.set(end.error());
      return 1;
    }
    verdict.set(done.error());
    return 1;
  };
  auto placed = engine::run_placed(plan, placement, tree, work, task.log);
  const Restored restored = shared;
  ::munmap(memory, sizeof(Restored));
  if (!placed) return std::move(placed).error();
  return placed->code == 0 ? Result<Restored>(restored) : verdict.get();
}

}  // namespace

Result<void> enter_folders(Task& task) {
  Options& options = task.options;
  options.action_scripts = absolute(options.action_scripts);
  CKPT_TRY_ASSIGN(options.images_dir, existing_folder(options.images_dir, "--images-dir"));
  if (options.work_dir.empty()) options.work_dir = options.images_dir;
  CKPT_TRY_ASSIGN(options.work_dir, existing_folder(options.work_dir, "--work-dir"));
  if (::chdir(options.work_dir.c_str()) != 0) return sys_error(options.work_dir.string(), "cannot be entered");
  task.log.set_level(options.log_level);
  return options.log_file.empty() || options.log_file == "-" ? Result<void>() : task.log.open(options.log_file);
}

Result<void> capture(Task& task, bool pre_dump) {
  CKPT_TRY_ASSIGN(engine::DumpOptions options, dump_options(task, pre_dump));
  CKPT_TRY(options.actions.check());
  auto work = [&](const bool& told) -> Result<void> {
    auto report =
        pre_dump ? engine::pre_dump(options, task.log, task.cancel) : engine::dump(options, task.log, task.cancel);
    if (!report) return std::move(report).error();
    if (!told) afterwards(task, *report);
    return {};
  };
  CKPT_TRY(engine::check_process(options.pid));
  CKPT_TRY_ASSIGN(const std::optional<engine::Beside> there, engine::find_beside(options.pid));
  // Before the process is ended, which a failure afterwards could only lie about.
  const fs::path inventory = task.options.images_dir / "inventory.img";
  std::error_code ec;
  const bool was_there = fs::exists(inventory, ec);
  CKPT_TRY(write_inventory(task.options.images_dir));
  auto done = there ? capture_beside(task, *there, options, work) : work(false);
  if (!done && !was_there) fs::remove(inventory, ec);
  return done;
}

Result<Restored> restore(Task& task) {
  const Options& options = task.options;
  CKPT_TRY_ASSIGN(engine::RestoreOptions how, restore_options(task));
  CKPT_TRY(how.actions.check());
  CKPT_TRY_ASSIGN(const store::Manifest manifest, store::read_manifest(how.image));
  engine::Placement placement;
  placement.join = options.joined;
  // Whoever asks gives these of every container, also of one whose mounts are joined.
  if (manifest.tree.namespaces.has("mnt") && options.joined.count("mnt") == 0)
    placement.mounts = {options.root, options.external_mounts, true};
  placement.network = {options.veths, true, options.empty_network};
  placement.detach = how.detach, placement.sibling = how.sibling;
  placement.cgroups = how.cgroups;
  CKPT_TRY_ASSIGN(const engine::NamespacePlan plan, engine::plan_namespaces(manifest, placement));
  if (!plan.empty() && !plan.makes_init && (how.sibling || !options.exec_command.empty()))
    return not_supported("--restore-sibling, --exec-cmd", "a process in namespaces that are joined has another parent");
  how.placed = !plan.empty();
  CKPT_TRY(take_owner_rights(how, [&](const std::string& text) { task.log.note(text); }));
  CKPT_TRY_ASSIGN(const Restored restored,
                  plan.empty() ? restore_here(how, task) : restore_placed(how, placement, plan, manifest.tree, task));
  if (auto written = write_statistics(".", restored.statistics); !written) task.log.note(written.error().text());
  task.log.info(fmt::format("restored process {}: {} processes, {} pages, in {}", restored.pid, restored.processes,
                            restored.statistics.pages_restored, human_us(restored.statistics.restore_us)));
  if (options.display_stats) {
    fmt::print(
        "Displaying restore stats:\nPages compared: 0\nPages skipped COW: 0\nPages restored: {}\n"
        "Restore time: {} us\nForking time: {} us\n",
        restored.statistics.pages_restored, restored.statistics.restore_us, restored.statistics.forking_us);
    std::fflush(stdout);  // the process may write to the same stream from now on
  }
  return restored;
}

Result<void> check(const std::string& feature) {
  CKPT_TRY_ASSIGN(const engine::GpuOptions gpu, gpu_options({}));
  const std::vector<engine::Feature> host = engine::host_features(gpu);
  if (feature.empty()) {
    for (const engine::Feature& f : host) {
      if (f.required && !f.present && f.verb != "suspend")
        return fail(Code::kMismatch, "this host", fmt::format("{} lacks {}", f.verb, f.name));
    }
    return {};
  }
  if (std::find(kFeatures.begin(), kFeatures.end(), std::string_view(feature)) != kFeatures.end()) return {};
  for (const HostFeature& known : kHostFeatures) {
    if (feature != known.name) continue;
    const bool present = std::any_of(host.begin(), host.end(), [&](const engine::Feature& f) {
      return f.verb == known.verb && f.name == known.host && f.present;
    });
    return present ? Result<void>() : fail(Code::kMismatch, feature, fmt::format("this host lacks {}", known.host));
  }
  return fail(Code::kMismatch, feature, "is not known, or nothing that ckpt uses");
}

}  // namespace ckpt::cli::criu
