// `ckpt check`: can this host, this process do it, and what is missing.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/dump_flags.h"
#include "lib/base/text.h"
#include "lib/engine/check.h"

namespace ckpt::cli {

namespace {

struct Flags {
  int pid = 0;
  bool shell_job = false;
  capture::SocketOptions sockets;
  GpuFlags gpu;
};

void print_json(Console& out, const Flags& flags, const engine::CheckReport& report) {
  nlohmann::ordered_json doc = {{"schema", "ckpt.check/1"}, {"host", nlohmann::ordered_json::array()}};
  for (const engine::Feature& f : report.host) {
    doc["host"].push_back({{"name", f.name}, {"present", f.present}, {"serves", f.serves}});
  }
  if (flags.pid != 0) {
    doc["pid"] = flags.pid;
    doc["gpu_processes"] = report.gpu_processes;
    doc["blockers"] = nlohmann::ordered_json::array();
    for (const auto& b : report.blockers) doc["blockers"].push_back({{"subject", b.subject}, {"what", b.what}, {"flag", b.flag}});
  }
  out.data(doc.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void print_table(Console& out, const Flags& flags, const engine::CheckReport& report) {
  std::vector<std::vector<std::string>> rows;
  if (flags.pid == 0) {
    for (const engine::Feature& f : report.host) rows.push_back({f.name, f.present ? "yes" : "no", f.serves});
    out.table({"FEATURE", "HERE", "FOR"}, rows);
  } else if (report.blockers.empty()) {
    out.data(escape_for_terminal(report.process) + ": nothing stands in the way of a dump\n");
  } else {
    for (const auto& b : report.blockers) rows.push_back({b.subject, b.what, b.flag.empty() ? "-" : b.flag});
    out.table({"WHERE", "WHAT", "ALLOWED BY"}, rows);
  }
}

}  // namespace

Command::Run add_check(VerbOptions& app) {
  auto flags = std::make_shared<Flags>();
  app.add_option("-p,--pid,-t,--tree", flags->pid, "A process: list everything in it that would block a dump").positive();
  app.add_flag("-j,--shell-job", flags->shell_job, "As for dump: terminals and pipes of the surroundings are no obstacle");
  add_socket_flags(app, flags->sockets);
  add_gpu_flag(app, flags->gpu, "As for dump: whether GPU state is an obstacle");
  auto check = [flags](Context& context) -> Result<void> {
    CKPT_TRY_ASSIGN(engine::GpuOptions gpu, gpu_options(flags->gpu));
    CKPT_TRY_ASSIGN(engine::CheckReport report, engine::check(flags->pid, flags->shell_job, flags->sockets, gpu));
    if (context.out.json()) print_json(context.out, *flags, report);
    else print_table(context.out, *flags, report);
    const size_t count = report.blockers.size();
    if (count == 0) return {};
    return fail(Code::kAnswerNo, "process " + report.process, fmt::format("{} obstacle{}", count, count == 1 ? "" : "s"));
  };
  return [flags, check](Context& context) -> Result<void> {
    if (flags->pid == 0) return check(context);
    return where_it_is(flags->pid, context, [&] { return check(context); });
  };
}

}  // namespace ckpt::cli
