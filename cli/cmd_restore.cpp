// restore: options -> engine::restore -> a summary or one JSON line.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <new>
#include <nlohmann/json.hpp>

#include "cli/dump_flags.h"
#include "cli/gpu_flags.h"
#include "cli/owner_rights.h"
#include "cli/plural.h"
#include "cli/remote_images.h"
#include "cli/restore_copies.h"
#include "cli/stats_text.h"
#include "cli/trace_flag.h"
#include "lib/base/text.h"
#include "lib/engine/pid_namespace.h"
#include "lib/engine/placement.h"
#include "lib/engine/restore.h"
#include "lib/migrate/page_desk.h"
#include "lib/migrate/permit.h"
#include "lib/store/image.h"
#include "lib/store/job.h"

namespace ckpt::cli {

namespace {

std::string json_line(const engine::RestoreReport& report, bool dry_run) {
  nlohmann::ordered_json doc = {{"schema", "ckpt.restore/1"},
                                {"event", dry_run ? "dry-run" : "done"},
                                {"dry_run", dry_run},
                                {"pid", report.pid},
                                {"pid_outside", report.pid_outside},
                                {"processes", report.processes},
                                {"threads", report.threads},
                                {"mappings", report.mappings},
                                {"descriptors", report.descriptors},
                                {"pages", report.pages},
                                {"bytes", report.bytes},
                                {"bytes_on_demand", report.bytes_on_demand},
                                {"phases_us", nlohmann::ordered_json::object()},
                                {"total_us", report.total_us}};
  for (const auto& [name, us] : report.phases_us) doc["phases_us"][json_key(name)] = us;
  return doc.dump() + "\n";
}

/// ckpt's own exit status is that of the process, where a 9 of its own could be taken for ckpt's.
std::string end_line(int pid, int pid_outside, const engine::ProcessEnd& end) {
  nlohmann::ordered_json doc = {{"schema", "ckpt.restore/1"}, {"event", "ended"},      {"pid", pid},
                                {"pid_outside", pid_outside}, {"exit_code", end.code}, {"signal", end.signal}};
  if (end.signal != 0) doc["exit_code"] = nullptr;
  else doc["signal"] = nullptr;
  return doc.dump() + "\n";
}

std::string summary(const engine::RestoreReport& report, bool dry_run) {
  std::string phases;
  for (const auto& [name, us] : report.phases_us)
    phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", name, human_us(us));
  const std::string others = report.processes > 1 ? " and " + counted(report.processes - 1, "descendant") : "";
  const std::string times = dry_run ? "" : fmt::format("; {} ({})", human_us(report.total_us), phases);
  return fmt::format("{} process {} ({}){}: {}, {}, {}, {} in {}{}", dry_run ? "would restore" : "restored", report.pid,
                     escape_for_terminal(report.comm), others, counted(report.threads, "thread"),
                     counted(report.mappings, "mapping"), counted(report.descriptors, "descriptor"),
                     human_bytes(report.bytes), counted(report.pages, "page"), times);
}

struct RestoreFlags {
  engine::RestoreOptions options;
  engine::Placement placement;
  std::vector<std::string> join, external_mounts, veths;
  GpuFlags gpu;
  ExternalFlags external;
  CopiesFlags copies;
  std::string trace;  ///< a file; empty: none
  TogetherFlags together;
  Membership* membership = nullptr;  ///< of a job; null: alone
  std::vector<std::string> addresses;
  std::string permit;         ///< of ckpt receive; empty: none
  std::string coming;         ///< with it: the image's pages come while it is restored; empty: they are there
  bool placed_init = false;  ///< what is restored is nobody's child where it is made
};

void tell(const engine::RestoreReport& report, bool dry_run, Console& out) {
  if (out.json()) {
    out.data(json_line(report, dry_run));
    std::fflush(stdout);  // the process may write to the same stream from now on
  } else if (dry_run) {
    out.data(summary(report, true) + "\n");
  } else {
    out.info(summary(report, false));
  }
}

/// `pid`: as it sees itself; it is a child of this process under the number outside, where that is another one.
Result<void> supervise(int pid, int pid_outside, Context& context) {
  const bool is_init = pid == 1;
  CKPT_TRY_ASSIGN(const engine::ProcessEnd end, engine::supervise(is_init ? pid_outside : pid, context.cancel));
  context.exit_status = end.shell_status();
  if (context.out.json()) context.out.data(end_line(pid, pid_outside, end));
  return {};
}

/// Held until the source of a migration says that it may run.
Result<engine::RestoreReport> restore_held(const RestoreFlags& flags, Context& context) {
  CKPT_TRY_ASSIGN(migrate::Permit permit, migrate::Permit::open(flags.permit, !flags.coming.empty()));
  engine::RestoreOptions options = flags.options;
  if (!flags.coming.empty()) {
    CKPT_TRY_ASSIGN(options.lazy_fate, migrate::expect_pages(flags.coming, flags.options.image));
  }
  options.may_run = [&](int pid, int outside) { return permit.may_run(pid, outside, context.cancel); };
  options.runs = [&] { permit.runs(); };
  return engine::restore(options, context.progress, context.cancel);
}

Result<void> restore_here(const RestoreFlags& flags, Context& context) {
  const engine::RestoreOptions& options = flags.options;
  auto work = [&] {
    return flags.permit.empty() ? engine::restore(options, context.progress, context.cancel)
                              : restore_held(flags, context);
  };
  auto restored = traced(flags.trace, "restore", context, work);
  if (flags.membership != nullptr && !options.dry_run) {
    // Of what all fail with rank 0 tells.
    Result<void> done = flags.membership->conclude(restored ? Result<void>() : Result<void>(restored.error()));
    if (!restored && done) return {};
    CKPT_TRY(done);
    flags.membership->finish();
  }
  CKPT_TRY_ASSIGN(engine::RestoreReport report, std::move(restored));
  try {
    tell(report, options.dry_run, context.out);
  } catch (const std::bad_alloc&) {  // the process runs, and an error would say that it does not
    constexpr std::string_view kText = "ckpt: done; there is no memory for the report\n";
    (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  }
  if (options.dry_run || options.detach || flags.placed_init) return {};
  return supervise(report.pid, report.pid_outside, context);
}

int code_of(const Result<void>& done, Context& context) {
  if (done) return context.exit_status;
  GlobalOptions global;
  global.json = context.out.json();
  report_error(done.error(), global);
  return exit_code(done.error().code);
}

/// The numbers of the image are free in a namespace of its own.
Result<void> restore_apart(const RestoreFlags& flags, Context& context) {
  const engine::RestoreOptions& options = flags.options;
  CKPT_TRY_ASSIGN(store::Manifest manifest, store::read_manifest(options.image));
  engine::PidNamespaceOptions apart;
  apart.detach = options.detach;
  for (const auto& process : manifest.tree.processes) {
    for (const auto& thread : process.threads) apart.highest = std::max(apart.highest, thread.tid);
  }
  auto work = [&] { return code_of(restore_here(flags, context), context); };
  CKPT_TRY_ASSIGN(context.exit_status, engine::run_in_pid_namespace(apart, work));
  return {};
}

/// In other namespaces than ckpt's.
Result<void> restore_placed(RestoreFlags& flags, const store::TreeImage& tree, const engine::NamespacePlan& plan,
                            Context& context) {
  flags.placement.detach = flags.options.detach, flags.placement.dry_run = flags.options.dry_run;
  flags.placement.cgroups = flags.options.cgroups;
  flags.placed_init = plan.makes_init;
  auto work = [&] { return code_of(restore_here(flags, context), context); };
  CKPT_TRY_ASSIGN(const engine::Placed placed, engine::run_placed(plan, flags.placement, tree, work, context.progress));
  context.exit_status = placed.code;
  if (placed.code != 0 || placed.init == 0 || flags.options.detach || flags.options.dry_run) return {};
  return supervise(tree.root().pid, placed.init, context);
}

/// Fetching what was read by now has made threads, beside which no namespace is entered: a child has none of them.
Result<void> in_a_child(Context& context, const std::function<Result<void>()>& work) {
  std::fflush(nullptr);
  const sigset_t old = engine::block_relayed_signals();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigprocmask(SIG_SETMASK, &old, nullptr);
    const int code = code_of(work(), context);
    std::fflush(nullptr);
    ::_exit(code);
  }
  const int error = errno;
  if (child > 0) context.exit_status = engine::relay_signals(child);
  sigprocmask(SIG_SETMASK, &old, nullptr);
  return child > 0 ? Result<void>() : sys_error(error, "", "cannot make a process");
}

Result<void> run_restore(RestoreFlags& flags, Context& context) {
  CKPT_TRY(check_trust(flags.options.image, flags.options.trust));
  engine::NamespacePlan plan;
  const auto manifest = store::read_manifest(flags.options.image);  // what is wrong with it the restore itself tells
  if (manifest) {
    CKPT_TRY_ASSIGN(plan, engine::plan_namespaces(*manifest, flags.placement));
  }
  if (!flags.options.files_root.empty() && (plan.make.count("mnt") != 0 || plan.join.count("mnt") != 0))
    return fail(Code::kUnsupported, "--files-root", "leads nowhere in the mount namespace that the processes get");
  if (flags.options.new_pid_namespace && !plan.empty()) {
    if (plan.join.count("pid") != 0 || flags.placement.into != 0)
      return fail(Code::kUsage, "--new-pidns", "and a pid namespace that is there exclude each other");
    plan.make["pid"] = true;
  }
  bool far = false;
  if (!plan.empty()) {
    CKPT_TRY_ASSIGN(far, fetch_from_elsewhere(flags.options.image));
  }
  if (far && (plan.make.count("user") != 0 || plan.join.count("user") != 0))
    return Error(Code::kUnsupported, flags.options.image.string(),
                 "lies at a URL, which cannot be reached from another user namespace")
        .with_hint("copy the image, with its parents, to a folder first");
  if (manifest && !manifest->job.id.empty() && flags.membership == nullptr) {
    context.progress.note(fmt::format("this is the part of rank {} alone, of a job of {} (--together: all of it)",
                                      manifest->job.rank, manifest->job.ranks));
  }
  if (flags.copies.count != 0 && (!flags.placement.join.empty() || flags.placement.into != 0))
    return fail(Code::kUsage, "--copies", "does not go with --into and --join-ns: each has namespaces of its own");
  if (flags.copies.count != 0 && remote::with_urls(flags.options.image.string()))
    return Error(Code::kUnsupported, flags.options.image.string(), "lies at a URL, which copies cannot share")
        .with_hint("copy the image, with its parents, to a folder first");
  flags.options.placed = !plan.empty();
  CKPT_TRY(take_owner_rights(flags.options, [&](const std::string& text) { context.out.info(text); }));
  if (flags.copies.count != 0) {
    CKPT_TRY(restore_copies(flags.copies, flags.options, context));
    if (!flags.options.dry_run) return {};
  }
  if (!plan.empty() && far)
    return in_a_child(context, [&] { return restore_placed(flags, manifest->tree, plan, context); });
  if (!plan.empty()) return restore_placed(flags, manifest->tree, plan, context);
  const bool apart = flags.options.new_pid_namespace && !flags.options.dry_run;
  return apart ? restore_apart(flags, context) : restore_here(flags, context);
}

/// Member N restores the part of rank N.
Result<void> run_restore_together(RestoreFlags& flags, Context& context) {
  if (flags.options.dry_run || !flags.options.pidfile.empty() || flags.copies.count != 0)
    return fail(Code::kUsage, "--together", "does not go with --dry-run, --pidfile and --copies");
  CKPT_TRY_ASSIGN(const auto member, Membership::open(flags.together, context));
  const std::filesystem::path folder = flags.options.image;
  flags.membership = member.get();
  flags.options.together = &member->together();
  flags.options.image = folder / store::part_name(member->rank());
  return member->run([&]() -> Result<void> {
    CKPT_TRY_ASSIGN(const store::Job job, store::read_job(folder));
    engine::Together::Facts facts;
    facts.verb = "restore", facts.folder = folder, facts.job = job.id;
    facts.ranks = static_cast<uint32_t>(job.members.size());
    CKPT_TRY(member->together().join(facts));
    CKPT_TRY(store::read_part(folder, job, member->rank()));
    return run_restore(flags, context);
  });
}

/// "net:/run/netns/blue"; a number in the place of the path: the namespace of that process.
Result<void> parse_joins(const std::vector<std::string>& words, engine::Placement& placement) {
  for (const std::string& word : words) {
    const size_t colon = word.find(':');
    if (colon == std::string::npos || colon + 1 == word.size())
      return fail(Code::kUsage, "--join-ns " + word, "is not KIND:PATH, as in net:/run/netns/blue");
    const std::string kind = word.substr(0, colon), where = word.substr(colon + 1);
    const bool is_pid = where.find_first_not_of("0123456789") == std::string::npos;
    placement.join[kind] = is_pid ? fmt::format("/proc/{}/ns/{}", where, kind) : where;
  }
  return {};
}

/// The folder itself may lie behind a link; nothing below it does.
Result<void> find_files_root(std::filesystem::path& root) {
  if (root.empty()) return {};
  std::error_code ec;
  const std::filesystem::path found = std::filesystem::canonical(root, ec);
  if (ec || !std::filesystem::is_directory(found, ec))
    return fail(Code::kUsage, "--files-root " + root.string(), "is no folder");
  root = found;
  return {};
}

}  // namespace

Command::Run add_restore(VerbOptions& app) {
  auto flags = std::make_shared<RestoreFlags>();
  engine::RestoreOptions* options = &flags->options;
  app.add_saved("-f,--images-dir,-D,--dir", Saved::kImage, options->image, "The image")
      .required()
      .type_name("PATH|URL");
  app.add_flag("-d,--detach,--restore-detached", options->detach, "Return once the process runs");
  app.add_option("--pidfile", options->pidfile, "Write the pid there before the process runs").type_name("FILE");
  add_external_flags(app, flags->external,
                     "Its terminal and outer pipes are ckpt's own descriptors of the same numbers",
                     "Pipes from outside its tree: ckpt's own descriptors, or /dev/null (else as the dump had it)",
                     {"keep", "null"});
  app.add_flag("--tcp-established", "Accepted: the connections of an image go on in any case");
  app.add_flag("--new-pidns", options->new_pid_namespace, "In a pid namespace of its own, where its numbers are free");
  app.add_option("--into", flags->placement.into, "In the namespaces of this process, a pause container for instance")
      .positive()
      .type_name("PID");
  app.add_option("--join-ns", flags->join,
                 "In this namespace instead of a new one; KIND: pid, mnt, net, ipc, uts, cgroup, user")
      .type_name("KIND:PATH")
      .one_value_each();
  app.add_option("--root", flags->placement.mounts.root, "The folder that becomes the root of a new mount namespace")
      .type_name("DIR");
  app.add_option("--external", flags->external_mounts,
                 "What is mounted in a new mount namespace, by the key of the dump or the place")
      .type_name("mnt[KEY]:PATH")
      .one_value_each();
  app.add_option("--veth", flags->veths,
                 "Where the other end of a veth in a new network namespace is made, and as a port of what")
      .type_name("INSIDE=OUTSIDE[@BRIDGE]")
      .one_value_each();
  add_copies_flags(app, flags->copies);
  add_together_flags(app, flags->together,
                     "One of many ckpts that mpirun or srun has started: all make their part of a job, then let go");
  app.add_option("--map-address", flags->addresses, "Sockets of the address OLD have NEW, and so have their peers")
      .type_name("OLD=NEW")
      .one_value_each();
  app.add_flag("--lazy", options->lazy, "Let the process run before its memory has been read");
  app.add_option("--lazy-log", options->lazy_log, "With --lazy: append what goes wrong later there").type_name("FILE");
  app.add_option("--allow-changed", options->allow_changed,
                 "Take this file as it is now; a path or a pattern, more than once if need be")
      .type_name("FILE")
      .one_value_each();
  app.add_flag("--drop-labels", options->drop_labels,
               "Let processes have ckpt's own security label (SELinux, AppArmor, Smack) where theirs was another");
  app.add_option("--files-root", options->files_root,
                 "Put the files whose content the image has below this folder instead of where they were")
      .type_name("DIR");
  app.add_flag("--force", options->force_files, "Put the content of files back over newer ones, too");
  add_gpu_flag(app, flags->gpu, "GPU state: put back, or left in memory until ckpt resume");
  add_gpu_map_flag(app, flags->gpu);
  add_action_flags(app, options->actions);
  add_criu_output_flags(app);
  app.add_flag("-n,--dry-run", options->dry_run, "Only say what would be done, or what is in the way");
  app.add_flag("--trust", options->trust,
               "Also an image that another user owns or may write, with every right it asks for");
  app.add_option("--permit", flags->permit, "Of ckpt receive").hidden();
  app.add_option("--coming", flags->coming, "Of ckpt receive").hidden();
  add_trace_flag(app, flags->trace);
  return [flags](Context& context) -> Result<void> {
    CKPT_TRY(flags->options.actions.check());
    CKPT_TRY(check_copies_flags(flags->copies, flags->options));
    CKPT_TRY_ASSIGN(flags->options.gpu, gpu_options(flags->gpu));
    flags->options.external = flags->external.finish();
    CKPT_TRY(find_files_root(flags->options.files_root));
    CKPT_TRY(parse_joins(flags->join, flags->placement));
    CKPT_TRY_ASSIGN(flags->placement.mounts.external, state::parse_external_mounts(flags->external_mounts));
    CKPT_TRY_ASSIGN(flags->placement.network.ends, state::parse_veths(flags->veths));
    for (const std::string& text : flags->addresses) {
      CKPT_TRY_ASSIGN(auto address, restore::parse_mapped_address(text));
      flags->options.addresses.push_back(std::move(address));
    }
    return flags->together.together ? run_restore_together(*flags, context) : run_restore(*flags, context);
  };
}

}  // namespace ckpt::cli
