#include "cli/dump_flags.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/plural.h"
#include "cli/restore_copies.h"
#include "cli/save_cost.h"
#include "cli/stats_text.h"
#include "cli/topology_file.h"
#include "cli/trace_flag.h"
#include "lib/base/digest.h"
#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/beside.h"
#include "lib/engine/check.h"
#include "lib/engine/estimate.h"
#include "lib/remote/home_network.h"
#include "lib/remote/url.h"
#include "lib/store/job.h"

namespace ckpt::cli {

void add_socket_flags(VerbOptions& app, capture::SocketOptions& sockets) {
  const VerbOption established =
      app.add_flag("--tcp-established", sockets.tcp_established,
                   "TCP connections go with the image; their peers are held off until the restore");
  app.add_flag("--tcp-close", sockets.tcp_close, "TCP connections come back closed").excludes(established);
  app.add_flag("--ext-unix-sk", sockets.external_unix, "Unix sockets with a peer outside connect to its address again");
}

state::ExternalOptions ExternalFlags::finish() const {
  using state::ExternalPipes;
  state::ExternalOptions out;
  out.terminals = shell_job;
  out.pipes = pipes == "null"                                   ? ExternalPipes::kNull
              : pipes == "keep" || (pipes.empty() && shell_job) ? ExternalPipes::kKeep
                                                                : ExternalPipes::kFail;
  if (memory == "copy") out.memory = state::ExternalMemory::kCopy;
  return out;
}

void add_external_flags(VerbOptions& app, ExternalFlags& flags, const char* shell_job_text, const char* pipes_text,
                        const std::vector<std::string>& values) {
  app.add_flag("-j,--shell-job", flags.shell_job, shell_job_text);
  app.add_option("--external-pipes", flags.pipes, pipes_text)
      .one_of(values)
      .type_name(fmt::format("{}", fmt::join(values, "|")));
}

void add_external_memory_flag(VerbOptions& app, std::string& memory) {
  app.add_option("--external-memory", memory,
                 "Memory, eventfds, timerfds, epoll sets that others have, too: an obstacle, or copied (default fail)")
      .one_of({"fail", "copy"})
      .type_name("fail|copy");
}

void add_hash_flag(VerbOptions& app, std::string& hash) {
  app.add_option("--hash", hash,
                 "What pages are hashed with: against accidents, or against forgery, too (default xxh3)")
      .one_of({"xxh3", "sha256"})
      .type_name("xxh3|sha256");
}

void add_files_flag(VerbOptions& app, std::vector<std::string>& words) {
  app.add_option("--files", words, "The content of files goes along: those being written, all open ones, or these")
      .type_name("written|open|PATH")
      .one_value_each();
}

Result<state::FileContents> parse_files(const std::vector<std::string>& words) {
  state::FileContents out;
  for (const std::string& word : words) {
    if (word == "written") out.written = true;
    else if (word == "open") out.open = true;
    else if (!word.starts_with("/"))
      return fail(Code::kUsage, "--files " + word, "is neither written, nor open, nor an absolute path");
    else if (std::filesystem::path(word).lexically_normal().string() != word)  // restore would not find it so
      return fail(Code::kUsage, "--files " + word, "is not written as plainly as it could be (without //, . and ..)");
    else out.paths.push_back(word);
  }
  return out;
}

void add_action_flags(VerbOptions& app, engine::Actions& actions) {
  app.add_option("--action-script", actions.scripts, "A program to run at certain points; may be given several times")
      .type_name("FILE");
  app.add_option("--status-fd", actions.status_fd, "Write a zero byte to this descriptor and close it once done")
      .in_range(0, 1 << 30)
      .type_name("FD");
}

void add_criu_output_flags(VerbOptions& app) {
  app.add_optional_value("-v,--verbosity", "Accepted: how much criu prints");
  app.add_ignored_value("-o,--log-file", "Accepted; no log is written, what ckpt says is on standard error")
      .type_name("FILE");
  app.add_flag("--display-stats", "Accepted; the report has them");
}

void add_dump_flags(VerbOptions& app, DumpFlags& flags) {
  app.add_option("-p,--pid,-t,--tree", flags.options.pid, "The process, with all its descendants").required();
  app.add_option("-f,--images-dir,-D,--dir", flags.dir, "The folder of the image; it must not exist or be empty")
      .type_name("PATH|URL")
      .required();
  const VerbOption prev =
      app.add_option("--prev", flags.prev, "The parent image: only what differs from it is stored")
          .type_name("PATH|URL");
  VerbOption criu_prev = app.add_option("--prev-images-dir", flags.criu_prev,
                                        "The same as criu has it: a path that begins at the folder of the image");
  criu_prev.excludes(prev).type_name("DIR");
  app.add_flag("--no-prev", flags.options.no_prev,
               "A full image: no parent, also where writes are tracked since another one")
      .excludes(prev)
      .excludes(criu_prev);
  add_external_flags(
      app, flags.external, "Allow terminals and pipes from outside the tree: restore takes its own in their place",
      "Pipes from outside the tree: an obstacle, kept as --shell-job does, or /dev/null after a restore");
  add_external_memory_flag(app, flags.external.memory);
  add_socket_flags(app, flags.options.sockets);
  app.add_option("--external", flags.external_mounts,
                 "What is mounted at POINT does not go with the image: restore is told under KEY what is")
      .type_name("mnt[POINT]:KEY")
      .one_value_each();
  add_gpu_flag(app, flags.gpu, "GPU state: taken where there is some, an obstacle, or asked for");
  add_gpu_lock_timeout_flag(app, flags.gpu);
  add_delta_flag(app, flags.gpu);
  app.add_option("--ghost-limit", flags.options.ghost_limit,
                 "Largest file, deleted or of --files, whose content goes with the image (default 1G)")
      .as_size()
      .type_name("SIZE");
  add_files_flag(app, flags.files);
  add_action_flags(app, flags.options.actions);
  add_together_flags(app, flags.together,
                     "One of many ckpts that mpirun or srun has started: all take the image of one instant");
  app.add_option("--hold-limit", flags.hold_limit_s,
                 "With --together: seconds a tree stands still for members that are not done (default 600; 0: any)")
      .in_range(0, 1'000'000)
      .type_name("SECONDS");
  app.add_option("--topology", flags.topology,
                 "With --together: what each rank is: RANK NODE [RACK] [dp=N] [tp=N] [pp=N]")
      .type_name("FILE");
  app.add_flag("--safe-point", flags.options.safe_points.wait,
               "Wait, up to --timeout, until the processes come to ckpt_safe_point (libckpt-flash)");
  app.add_flag("--barrier", flags.options.safe_points.agreed,
               "With --safe-point: to the same one, that of equal number; with --together that of all of the job");
  app.add_option("--safe-point-signal", flags.safe_point_signal,
                 "With --safe-point: send them this signal once one is wanted")
      .type_name("SIGNAL");
  app.add_flag("--track-mem", "Accepted: what is written is tracked in any case");
  add_criu_output_flags(app);
  app.add_option("--timeout", flags.timeout_s, "Seconds that the processes may take to stand still (default 10)")
      .positive()
      .type_name("SECONDS");
  app.add_option("--iterations,--rounds", flags.iterations,
                 "Pre-copy iterations, while the processes run: a number, or as many as pay (default auto)")
      .type_name("N|auto");
  app.add_option("--max-iterations,--max-rounds", flags.options.max_iterations,
                 "Most of --iterations auto (default 8)")
      .in_range(0, 1000)
      .type_name("N");
  app.add_option("--downtime-goal", flags.downtime_goal_ms,
                 "No more iterations once the stop is predicted to last so many milliseconds (default 5)")
      .positive()
      .type_name("MS");
  app.add_option("--validate-sample", flags.validate_sample,
                 "Read so many of the unchanged pages again and compare; a full image where one differs")
      .type_name("PART");
  app.add_option("--max-cow", flags.options.max_cow,
                 "Memory that copy-on-write may cost before the processes are stopped (default: no limit)")
      .as_size()
      .type_name("SIZE");
  app.add_option("--max-memory", flags.options.max_memory, "Memory that ckpt aims to stay within (default 256M)")
      .as_size()
      .type_name("SIZE");
  app.add_flag("--force", flags.options.force,
               "Replace a folder that is not empty; end what this user could not restore");
  app.add_flag("--no-compress", flags.no_compress, "Store pages as they are");
  add_hash_flag(app, flags.hash);
  app.add_option("--jobs", flags.options.workers, "Worker threads (default: one a core)").in_range(1, 1024);
  add_trace_flag(app, flags.trace);
}

Result<std::optional<unsigned>> parse_iterations(const std::string& option, const std::string& text) {
  constexpr unsigned kMost = 1000;
  unsigned iterations = 0;
  if (text == "auto") return std::optional<unsigned>();
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), iterations);
  if (error == std::errc() && end == text.data() + text.size() && iterations <= kMost)
    return std::optional<unsigned>(iterations);
  return fail(Code::kUsage, option + " " + text, "is neither auto nor a number up to 1000");
}

namespace {

/// criu opens it from the folder of the image, which must exist there. What is found only from the working folder was
/// meant so.
std::string resolve_criu_prev(const std::string& dir, const std::string& prev) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path below =
      fs::is_directory(dir, ec) ? fs::path(dir) / prev : (fs::absolute(dir, ec) / prev).lexically_normal();
  return fs::exists(below, ec) || !fs::exists(prev, ec) ? below.string() : prev;
}

}  // namespace

Result<void> finish_dump_flags(DumpFlags& flags) {
  CKPT_TRY(flags.options.actions.check());
  CKPT_TRY_ASSIGN(flags.options.iterations, parse_iterations("--iterations", flags.iterations));
  CKPT_TRY_ASSIGN(flags.options.gpu, gpu_options(flags.gpu));
  if (!flags.validate_sample.empty()) {
    CKPT_TRY_ASSIGN(flags.options.validate_sample, parse_part(flags.validate_sample, "--validate-sample"));
    if (remote::is_url(flags.dir))  // from where nothing can be read again before all of it is there
      return fail(Code::kUsage, "--validate-sample", "does not go with a URL");
  }
  flags.options.downtime_goal_us = static_cast<uint64_t>(flags.downtime_goal_ms * 1e3);
  if (flags.dir.empty()) return fail(Code::kUsage, "-f", "needs the name of a folder");
  if (flags.options.pid <= 0) return fail(Code::kUsage, "-p " + std::to_string(flags.options.pid), "is not a pid");
  flags.options.dir = flags.dir;
  flags.options.external = flags.external.finish();
  CKPT_TRY_ASSIGN(flags.options.contents, parse_files(flags.files));
  engine::SafePointOptions& safe_points = flags.options.safe_points;
  if (!safe_points.wait && (safe_points.agreed || !flags.safe_point_signal.empty()))
    return fail(Code::kUsage, safe_points.agreed ? "--barrier" : "--safe-point-signal", "needs --safe-point");
  if (!flags.safe_point_signal.empty()) {
    CKPT_TRY_ASSIGN(safe_points.signal, parse_signal("--safe-point-signal", flags.safe_point_signal));
  }
  CKPT_TRY_ASSIGN(flags.options.external_mounts.keys, state::parse_external_mounts(flags.external_mounts));
  flags.options.prev = flags.criu_prev.empty() ? flags.prev : resolve_criu_prev(flags.dir, flags.criu_prev);
  flags.options.compress = !flags.no_compress;
  flags.options.sha256_pages = flags.hash == "sha256";
  flags.options.freeze_timeout_us = static_cast<uint64_t>(flags.timeout_s * 1e6);
  return {};
}

namespace {

/// What a worker prints before it ends with its target: kept, and printed by whoever ran it once that has happened.
class LastWords {
 public:
  static Result<LastWords> create() {
    LastWords out;
    for (UniqueFd* file : {&out.kept_[0], &out.kept_[1]}) {
      *file = UniqueFd(::memfd_create("ckpt-report", MFD_CLOEXEC));
      if (!*file) return sys_error("", "cannot make memory for the report");
    }
    return out;
  }
  /// In the worker: what is printed from here on is kept.
  void begin() {
    std::fflush(nullptr);
    for (int i : {0, 1}) {
      before_[i] = UniqueFd(::fcntl(kStreams[i], F_DUPFD_CLOEXEC, 3));
      ::dup2(kept_[i].get(), kStreams[i]);
    }
  }
  /// In the worker: what it still prints, should it go on, has been said.
  void end() {
    std::fflush(nullptr);
    const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    for (int i : {0, 1}) ::dup2(nowhere.get(), kStreams[i]);
  }
  /// In the worker, which has failed after all: its error is what is printed.
  void abandon() {
    if (!before_[0]) return;
    std::fflush(nullptr);
    for (int i : {0, 1}) ::dup2(before_[i].get(), kStreams[i]), before_[i].reset();
  }
  void print() const {
    for (int i : {0, 1}) {
      std::array<char, 65536> bytes;
      off_t at = 0;
      for (ssize_t got; (got = ::pread(kept_[i].get(), bytes.data(), bytes.size(), at)) > 0; at += got)
        (void)io::write_all(kStreams[i],
                            ByteSpan(reinterpret_cast<const std::byte*>(bytes.data()), static_cast<size_t>(got)), "");
    }
  }

 private:
  static constexpr int kStreams[2] = {STDOUT_FILENO, STDERR_FILENO};
  UniqueFd kept_[2], before_[2];
};

Result<void> work_where_it_is(int& pid, Context& context, const std::function<Result<void>()>& work,
                              const std::function<void()>& ended) {
  CKPT_TRY(engine::check_process(pid));
  CKPT_TRY_ASSIGN(std::optional<engine::Beside> there, engine::find_beside(pid));
  if (!there) return work();
  auto inside = [&]() -> int {
    pid = there->inside;
    auto done = work();
    if (done) return context.exit_status;
    GlobalOptions global;
    global.json = context.out.json();
    report_error(done.error(), global);
    return exit_code(done.error().code);
  };
  CKPT_TRY(remote::remember_network());  // URLs are those of whoever called ckpt
  CKPT_TRY_ASSIGN(context.exit_status, engine::run_beside(*there, inside, ended));
  return {};
}

}  // namespace

Result<void> where_it_is(int& pid, Context& context, const std::function<Result<void>()>& work) {
  return work_where_it_is(pid, context, work, [] {});
}

Result<void> end_where_it_is(engine::DumpOptions& options, Context& context,
                             const std::function<void(const engine::DumpReport&)>& print,
                             const std::function<void()>& afterwards, const std::function<Result<void>()>& work) {
  CKPT_TRY_ASSIGN(LastWords words, LastWords::create());
  options.before_common_end = [&](const engine::DumpReport& report) {
    words.begin();
    print(report);
    words.end();
  };
  auto then = [&]() -> Result<void> {
    Result<void> done = work();
    if (!done) words.abandon();
    return done;
  };
  return work_where_it_is(options.pid, context, then, [&] {
    words.print();
    afterwards();
  });
}

Result<void> dump_where_it_is(DumpFlags& flags, Context& context, const std::function<Result<void>()>& work) {
  auto print = [&](const engine::DumpReport& report) { print_dump_report(context, "dump", flags, report); };
  return end_where_it_is(flags.options, context, print, [&] { flags.options.actions.ready(); }, work);
}

namespace {

/// What goes with one process, and with a job of many not.
Result<void> check_together(const DumpFlags& flags) {
  const std::pair<bool, const char*> others[] = {{flags.options.force, "--force"},
                                                 {flags.options.sockets.tcp_close, "--tcp-close"},
                                                 {flags.dry_run, "--dry-run"},
                                                 {!flags.options.actions.scripts.empty(), "--action-script"},
                                                 {!flags.criu_prev.empty(), "--prev-images-dir"},
                                                 {remote::is_url(flags.dir), "a URL"}};
  for (const auto& [given, name] : others) {
    if (given) return fail(Code::kUsage, "--together", fmt::format("does not go with {}", name));
  }
  return {};
}

}  // namespace

Result<void> dump_alone_or_together(DumpFlags& flags, Context& context, const std::string& verb,
                                    const std::function<Result<void>(const std::function<Result<void>()>&)>& where,
                                    const std::function<Result<void>()>& dump) {
  if (!flags.together.together && !flags.topology.empty()) return fail(Code::kUsage, "--topology", "needs --together");
  if (!flags.together.together) return where(dump);
  CKPT_TRY(check_together(flags));
  CKPT_TRY_ASSIGN(const auto member, Membership::open(flags.together, context));
  flags.options.together = &member->together();
  const std::filesystem::path folder = flags.dir;
  const std::string part = store::part_name(member->rank());
  flags.options.dir = folder / part;
  if (store::looks_like_job(flags.options.prev)) flags.options.prev /= part;
  return member->run([&]() -> Result<void> {
    engine::Together::Facts facts;
    facts.verb = verb, facts.folder = folder, facts.freeze_timeout_us = flags.options.freeze_timeout_us;
    facts.hold_limit_us = uint64_t{flags.hold_limit_s} * 1'000'000;
    const bool may_end = verb != "pre-dump";  // which has no choice, and says none
    facts.ends_processes = may_end && flags.options.after != engine::DumpOptions::After::kLeaveRunning;
    if (!flags.topology.empty()) {
      CKPT_TRY_ASSIGN(const std::string text, read_topology_text(flags.topology));
      CKPT_TRY_ASSIGN(facts.topology, parse_topology(text, flags.topology));
      facts.topology_name = flags.topology, facts.topology_id = sha256_hex(as_bytes(text));
    }
    CKPT_TRY(member->together().join(facts));
    return where([&] { return member->conclude(dump()); });
  });
}

namespace {

/// The parent image, in words; where nobody named it, why it is one.
std::string needs_text(const std::string& parent, const DumpFlags& flags) {
  if (parent.empty()) return "";
  const char* why = flags.prev.empty() && flags.criu_prev.empty()
                        ? ", the image since which writes are tracked; --no-prev makes a full one"
                        : "";
  return "  (needs " + parent + why + ")";
}

std::string validated_text(const engine::DumpReport& report) {
  if (!report.fell_back.empty()) return "no: a full image in place of one that was not what the process was";
  if (report.pages_validated == 0) return "no page was called unchanged";
  return fmt::format("{} unchanged pages, read again: as the images have them", report.pages_validated);
}

}  // namespace

void print_dump_report(Context& context, const char* verb, const DumpFlags& flags, const engine::DumpReport& report) {
  const store::Manifest& manifest = report.manifest;
  const store::CaptureStats& stats = manifest.stats;
  if (context.out.json()) {
    nlohmann::ordered_json doc = {{"schema", std::string("ckpt.") + verb + "/1"},
                                  {"event", "done"},
                                  {"pid", manifest.tree.root().pid},
                                  {"processes", manifest.tree.processes.size()},
                                  {"image", report.dir.string()},
                                  {"id", manifest.id},
                                  {"parent", manifest.parent_path}};
    doc.update(nlohmann::ordered_json::parse(stats_json(stats)));
    doc.update({{"pages_validated", report.pages_validated},
                {"fell_back", report.fell_back},
                {"tracked", report.tracked},
                {"tracking_armed", report.armed},
                {"target_state", report.target_state}});
    context.out.data(doc.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return;
  }
  auto pages = [](uint64_t n) { return fmt::format("{} ({})", n, human_bytes(n * store::kPageSize)); };
  const size_t others = manifest.tree.processes.size() - 1;
  const auto& arguments = manifest.tree.root().arguments;
  std::vector<std::vector<std::string>> rows = {
      {"process", fmt::format("{} ({})", manifest.tree.root().pid, arguments.empty() ? "?" : arguments[0]) +
                      (others == 0 ? "" : " and " + counted(others, "descendant"))},
      {"image", report.dir.string() + needs_text(manifest.parent_path, flags)},
      {"frozen", frozen_text(stats)},
      {"pre-copied", rounds_text(stats)},
      {"pages", fmt::format("{} scanned, {} copied, {} zero, {} unchanged", stats.pages_scanned,
                            pages(stats.pages_copied), stats.pages_zero, stats.pages_unchanged)},
      {"written", human_bytes(stats.bytes_written)},
      {"phases", phases_text(stats)},
      {"meanwhile", load_text(stats)},
      {"target", report.target_state + (report.armed ? ", writes tracked for the next dump" : "")},
  };
  if (flags.options.validate_sample > 0)
    rows.insert(rows.begin() + 5, {"validated", validated_text(report)});
  if (!manifest.tree.gpu.driver.empty()) rows.insert(rows.begin() + 4, {"gpu", gpu_text(stats)});
  context.out.info_table(rows);
}

Result<void> print_dump_estimate(Context& context, const char* verb, const DumpFlags& flags) {
  const auto look = verb == std::string_view("dump") ? engine::estimate_dump : engine::estimate_pre_dump;
  CKPT_TRY_ASSIGN(engine::DumpEstimate estimate, look(flags.options, context.progress, context.cancel));
  uint64_t bytes = estimate.pages_to_copy * store::kPageSize;
  if (context.out.json()) {
    nlohmann::ordered_json doc = {{"schema", std::string("ckpt.") + verb + "/1"},
                                  {"event", "dry-run"},
                                  {"pid", flags.options.pid},
                                  {"image", flags.dir},
                                  {"parent", estimate.parent.string()},
                                  {"pages_scanned", estimate.pages_scanned},
                                  {"pages_to_copy", estimate.pages_to_copy},
                                  {"pages_unchanged", estimate.pages_unchanged},
                                  {"bytes_at_most", bytes},
                                  {"bytes_expected", estimate.bytes_expected},
                                  {"room_bytes", estimate.room_bytes},
                                  {"processes", estimate.processes},
                                  {"threads", estimate.threads},
                                  {"maps", estimate.maps},
                                  {"descriptors", estimate.descriptors}};
    context.out.data(doc.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return {};
  }
  context.out.table(
      {}, {
              {"process", estimate.process},
              {"would write", flags.dir + needs_text(estimate.parent.string(), flags)},
              {"size", fmt::format("about {}, by a sample; {} free there", human_bytes(estimate.bytes_expected),
                                   human_bytes(estimate.room_bytes))},
              {"pages", fmt::format("{} populated, {} to copy (at most {} before compression), {} unchanged",
                                    estimate.pages_scanned, estimate.pages_to_copy, human_bytes(bytes),
                                    estimate.pages_unchanged)},
              {"state",
               fmt::format("{}, {}, {}, {}", counted(static_cast<uint64_t>(estimate.processes), "process", "processes"),
                           counted(static_cast<uint64_t>(estimate.threads), "thread"),
                           counted(static_cast<uint64_t>(estimate.maps), "mapping"),
                           counted(static_cast<uint64_t>(estimate.descriptors), "open file"))},
          });
  return {};
}

}  // namespace ckpt::cli
