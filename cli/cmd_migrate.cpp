// migrate: a dump whose image goes to another host as it comes to be, and is restored there before the source ends.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/dump_flags.h"
#include "cli/stats_text.h"
#include "lib/base/text.h"
#include "lib/engine/check.h"
#include "lib/engine/dump.h"
#include "lib/migrate/source.h"
#include "lib/migrate/stage.h"
#include "lib/migrate/welcome.h"
#include "lib/remote/scratch_folder.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

struct MigrateFlags {
  engine::DumpOptions options;
  migrate::RestoreWishes wishes;
  std::string host, ssh = "ssh -T -x", remote_ckpt = "ckpt", iterations = "auto", keep_image, pipes, memory;
  uint64_t bandwidth = 0;
  std::vector<std::string> files;
  double timeout_s = 30, downtime_goal_ms = 50;
  bool no_compress = false, lazy = false;
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

Result<migrate::Remote> remote_of(const MigrateFlags& flags) {
  migrate::Remote out;
  out.command = words_of(flags.ssh);
  if (out.command.empty()) return fail(Code::kUsage, "--ssh", "names no command");
  if (flags.host.empty() || flags.host[0] == '-') return fail(Code::kUsage, "--to " + flags.host, "is no host");
  // A shell there sees these words.
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-";
  if (flags.remote_ckpt.empty() || flags.remote_ckpt.find_first_not_of(kPlain) != std::string::npos)
    return fail(Code::kUsage, "--remote-ckpt " + flags.remote_ckpt, "is no plain path");
  out.command.insert(out.command.end(), {flags.host, flags.remote_ckpt, "receive"});
  out.host = flags.host;
  out.silence_us = static_cast<uint64_t>(flags.timeout_s * 1e6);
  return out;
}

Result<void> finish_flags(MigrateFlags& flags) {
  engine::DumpOptions& options = flags.options;
  if (options.pid <= 0) return fail(Code::kUsage, "-p " + std::to_string(options.pid), "is not a pid");
  CKPT_TRY_ASSIGN(options.iterations, parse_iterations("--iterations", flags.iterations));
  options.downtime_goal_us = static_cast<uint64_t>(flags.downtime_goal_ms * 1e3);
  options.compress = !flags.no_compress;
  options.no_prev = true;
  options.gpu.policy = engine::GpuOptions::Policy::kOff;
  options.force = flags.keep_image.empty();  // who may not restore it here may restore it there
  if (flags.lazy) flags.wishes.lazy_silence_us = std::max<uint64_t>(1, static_cast<uint64_t>(flags.timeout_s * 1e6));
  flags.wishes.pipes_to_null = !flags.pipes.empty();
  if (flags.wishes.pipes_to_null) options.external.pipes = state::ExternalPipes::kNull;
  CKPT_TRY_ASSIGN(options.contents, parse_files(flags.files));
  if (flags.memory == "copy") options.external.memory = state::ExternalMemory::kCopy;
  return {};
}

void print_report(Context& context, const MigrateFlags& flags, const engine::DumpReport& done,
                  const migrate::Source::Report& moved) {
  const store::Manifest& manifest = done.manifest;
  const int pid = manifest.tree.root().pid;
  if (context.out.json()) {
    nlohmann::ordered_json doc = {{"schema", "ckpt.migrate/1"},
                                  {"event", "done"},
                                  {"pid", pid},
                                  {"processes", manifest.tree.processes.size()},
                                  {"to", flags.host},
                                  {"pid_there", moved.pid},
                                  {"pid_outside_there", moved.pid_outside},
                                  {"image", flags.keep_image},
                                  {"bytes_sent", moved.bytes_sent},
                                  {"bytes_frozen", moved.bytes_frozen},
                                  {"downtime_us", moved.downtime_us},
                                  {"lazy", flags.lazy},
                                  {"bytes_later", moved.bytes_later},
                                  {"later_us", moved.later_us}};
    doc.update(nlohmann::ordered_json::parse(stats_json(manifest.stats)));
    doc["target_state"] = "ended";
    context.out.data(doc.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return;
  }
  const auto& arguments = manifest.tree.root().arguments;
  const std::string there = moved.pid == moved.pid_outside ? fmt::format("process {}", moved.pid)
                                                           : fmt::format("process {}, {} outside its namespace",
                                                                         moved.pid, moved.pid_outside);
  std::vector<std::vector<std::string>> rows = {
      {"process", fmt::format("{} ({})", pid, arguments.empty() ? "?" : arguments[0])},
      {"runs on", fmt::format("{}, as {}", flags.host, there)},
      {"downtime", human_us(moved.downtime_us)},
      {"iterations", rounds_text(manifest.stats)},
      {"sent", fmt::format("{}; {} of memory was copied while it stood still", human_bytes(moved.bytes_sent),
                           human_bytes(moved.bytes_frozen))},
      {"phases", phases_text(manifest.stats)},
      {"target", "ended here"},
  };
  if (flags.lazy)
    rows.insert(rows.begin() + 3, {"later", fmt::format("{} in {}, while they ran there",
                                                        human_bytes(moved.bytes_later), human_us(moved.later_us))});
  if (!flags.keep_image.empty()) rows.push_back({"image", flags.keep_image});
  context.out.info_table(rows);
}

Result<void> run_migrate(MigrateFlags& flags, Context& context) {
  CKPT_TRY(finish_flags(flags));
  CKPT_TRY_ASSIGN(const migrate::Remote remote, remote_of(flags));
  engine::DumpOptions& options = flags.options;
  CKPT_TRY(engine::check_process(options.pid));
  CKPT_TRY_ASSIGN(migrate::Hello hello, migrate::introduce(options.pid));
  hello.wishes = flags.wishes;
  if (flags.lazy && flags.keep_image.empty()) {  // until all has been sent it lies here, in memory, beside them
    if (auto room = migrate::check_memory(hello.memory, "the image of the processes may have"); !room)
      return std::move(room).error().with_hint("--keep-image has it on a disk");
  }
  CKPT_TRY_ASSIGN(auto source, migrate::Source::open(remote, std::move(hello), flags.bandwidth, context.cancel));
  UniqueFd sweeper;  // the folder goes with the last process that has this
  remote::ScratchFolder scratch;
  options.dir = flags.keep_image;
  if (flags.keep_image.empty()) {
    auto sweep = [&](const std::filesystem::path& path) -> Result<void> {
      CKPT_TRY_ASSIGN(sweeper, migrate::start_sweeper(path));
      return {};
    };
    CKPT_TRY_ASSIGN(scratch, remote::ScratchFolder::make_in_memory(sweep));
    options.dir = scratch.path() / "image";
    options.pages.instead = !flags.lazy;
  }
  source->attach(options, context.progress);
  auto print = [&](const engine::DumpReport& report) { print_report(context, flags, report, source->report()); };
  auto work = [&]() -> Result<void> {
    CKPT_TRY_ASSIGN(const engine::DumpReport report, engine::dump(options, context.progress, context.cancel));
    source->finish();
    print(report);
    return {};
  };
  return end_where_it_is(options, context, print, [&] { source->finish(); }, work);
}

void add_restore_wishes(VerbOptions& app, MigrateFlags& flags) {
  app.add_option("--external-pipes", flags.pipes, "Pipes from outside the tree are /dev/null there (else an obstacle)")
      .one_of({"null"})
      .type_name("null");
  add_external_memory_flag(app, flags.memory);
  app.add_option("--dir", flags.wishes.dir, "There: keep the image in this folder meanwhile (default: in memory)")
      .type_name("DIR");
  app.add_flag("--new-pidns", flags.wishes.new_pid_namespace,
               "There: in a pid namespace of its own, where its numbers are free");
  app.add_option("--map-address", flags.wishes.addresses,
                 "There: sockets of the address OLD have NEW, and so have their peers")
      .type_name("OLD=NEW")
      .one_value_each();
  app.add_option("--allow-changed", flags.wishes.allow_changed,
                 "There: take this file as it is; a path or a pattern, more than once if need be")
      .type_name("FILE")
      .one_value_each();
  app.add_flag("--drop-labels", flags.wishes.drop_labels,
               "There: let processes have ckpt's own security label where theirs was another");
}

}  // namespace

Command::Run add_migrate(VerbOptions& app) {
  auto flags = std::make_shared<MigrateFlags>();
  engine::DumpOptions& options = flags->options;
  app.add_option("-p,--pid,-t,--tree", options.pid, "The process, with all its descendants").required();
  app.add_option("--to", flags->host, "Where it is to run: as ssh knows it").type_name("HOST").required();
  app.add_option("--ssh", flags->ssh, "The command that runs another one on HOST (default: ssh -T -x)")
      .type_name("COMMAND");
  app.add_option("--remote-ckpt", flags->remote_ckpt, "ckpt's name there (default: ckpt)").type_name("PATH");
  app.add_option("--iterations,--rounds", flags->iterations,
                 "Pre-copy iterations, while the processes run: a number, or as many as pay (default auto)")
      .type_name("N|auto");
  app.add_option("--max-iterations,--max-rounds", options.max_iterations, "Most of --iterations auto (default 8)")
      .in_range(0, 1000)
      .type_name("N");
  app.add_option("--downtime-goal", flags->downtime_goal_ms,
                 "No more iterations once the rest is expected to take so many milliseconds (default 50)")
      .positive()
      .type_name("MS");
  app.add_option("--bandwidth", flags->bandwidth, "Send no more than so many bytes a second (default: no limit)")
      .as_size()
      .type_name("SIZE");
  app.add_option("--timeout", flags->timeout_s,
                 "Seconds in which the other end may not say or take anything (default 30)")
      .positive()
      .type_name("SECONDS");
  app.add_flag("--lazy", flags->lazy,
               "Let them run there before their memory has come; they stand still here until it has");
  app.add_option("--keep-image", flags->keep_image, "Keep the image here, too").type_name("DIR");
  add_files_flag(app, flags->files);
  add_socket_flags(app, options.sockets);
  add_restore_wishes(app, *flags);
  app.add_option("--max-memory", options.max_memory, "Memory that ckpt aims to stay within (default 256M)")
      .as_size()
      .type_name("SIZE");
  app.add_flag("--no-compress", flags->no_compress, "Send pages as they are");
  return [flags](Context& context) { return run_migrate(*flags, context); };
}

}  // namespace ckpt::cli
