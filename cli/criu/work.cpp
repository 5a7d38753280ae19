#include "cli/criu/work.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>

#include "cli/command.h"
#include "cli/criu/images.h"
#include "cli/dump_flags.h"
#include "cli/gpu_flags.h"
#include "cli/owner_rights.h"
#include "lib/base/text.h"
#include "lib/engine/check.h"
#include "lib/engine/dump.h"

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
  out.external.terminals = options.shell_job || options.orphan_terminals;
  out.external.pipes = state::ExternalPipes::kKeep;  // criu takes them in any case
  if (options.ghost_limit != 0) out.ghost_limit = options.ghost_limit;
  out.sockets.tcp_established = options.tcp_established;
  out.sockets.tcp_close = options.tcp_close;
  out.sockets.external_unix = options.external_unix;
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
  GlobalOptions global;
  global.quiet = true;
  Console console(global);
  Context context{console, task.log, task.cancel};
  options.before_common_end = [&](const engine::DumpReport& report) { afterwards(task, report); };
  CKPT_TRY(where_it_is(options.pid, context, [&]() -> Result<void> {
    auto report =
        pre_dump ? engine::pre_dump(options, task.log, task.cancel) : engine::dump(options, task.log, task.cancel);
    if (!report) return std::move(report).error();
    afterwards(task, *report);
    return {};
  }));
  if (context.exit_status != 0)
    return fail(Code::kMismatch, fmt::format("process {}", task.options.pid), "was not captured: see above");
  return write_inventory(task.options.images_dir);
}

Result<engine::RestoreReport> restore(Task& task) {
  const Options& options = task.options;
  engine::RestoreOptions how;
  how.image = find_image(options.images_dir);
  how.pidfile = options.pidfile;
  how.detach = options.detach && options.exec_command.empty();
  how.sibling = options.sibling;
  how.external.terminals = options.shell_job;
  // As criu has it: what nobody gives has lost its other end.
  how.external.pipes = options.shell_job ? state::ExternalPipes::kKeep : state::ExternalPipes::kEnded;
  how.external.given = options.inherited;
  how.cgroups.leave = options.cgroups == Cgroups::kLeave;
  for (const CgroupRoot& root : options.cgroup_roots)
    how.cgroups.roots.push_back({root.every ? "*" : root.controllers, root.path});
  CKPT_TRY_ASSIGN(how.gpu, gpu_options({}));
  how.actions = actions(task);
  CKPT_TRY(how.actions.check());
  CKPT_TRY(take_owner_rights(how, [&](const std::string& text) { task.log.note(text); }));
  CKPT_TRY_ASSIGN(engine::RestoreReport report, engine::restore(how, task.log, task.cancel));
  const RestoreStatistics statistics = count(report);
  if (auto written = write_statistics(".", statistics); !written) task.log.note(written.error().text());
  task.log.info(fmt::format("restored process {}: {} processes, {} in {} pages, in {}", report.pid, report.processes,
                            human_bytes(report.bytes), report.pages, human_us(report.total_us)));
  if (options.display_stats) {
    fmt::print(
        "Displaying restore stats:\nPages compared: 0\nPages skipped COW: 0\nPages restored: {}\n"
        "Restore time: {} us\nForking time: {} us\n",
        statistics.pages_restored, statistics.restore_us, statistics.forking_us);
    std::fflush(stdout);  // the process may write to the same stream from now on
  }
  return report;
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
