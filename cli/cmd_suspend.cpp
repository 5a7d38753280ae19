// suspend and resume: a GPU for another job, and back.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/gpu_flags.h"
#include "lib/base/text.h"
#include "lib/engine/check.h"
#include "lib/engine/suspend.h"

namespace ckpt::cli {

namespace {

struct SuspendFlags {
  int pid = 0;
  GpuFlags gpu;
};

void print(Console& out, const engine::SuspendReport& report) {
  if (out.json()) {
    nlohmann::ordered_json doc = {{"schema", "ckpt.suspend/1"}, {"pids", report.pids}, {"driver", report.state.driver}};
    doc["freed"] = nlohmann::ordered_json::array();
    for (const store::GpuUse& use : report.state.used)
      doc["freed"].push_back({{"uuid", use.uuid}, {"name", use.name}, {"bytes", use.bytes}});
    doc["lock_us"] = report.lock_us, doc["checkpoint_us"] = report.checkpoint_us, doc["target_state"] = "suspended";
    out.data(doc.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return;
  }
  std::string freed;
  for (const store::GpuUse& use : report.state.used)
    freed += fmt::format("{}{} of {} ({})", freed.empty() ? "" : ", ", human_bytes(use.bytes),
                         escape_for_terminal(use.uuid), escape_for_terminal(use.name));
  out.info(fmt::format("suspended {} process{}: {} free; lock {}, checkpoint {}", report.pids.size(),
                       report.pids.size() == 1 ? "" : "es", freed.empty() ? "no memory" : freed,
                       human_us(report.lock_us), human_us(report.checkpoint_us)));
}

struct ResumeFlags {
  std::vector<int> pids;
  int after = 0, parked = -1;
  GpuFlags gpu;
};

void print(Console& out, const engine::ResumeReport& report) {
  if (out.json()) {
    nlohmann::ordered_json doc = {{"schema", "ckpt.resume/1"},
                                  {"pids", report.pids},
                                  {"restore_us", report.restore_us},
                                  {"target_state", "running"}};
    out.data(doc.dump() + "\n");
    return;
  }
  if (report.pids.empty()) return out.info("nothing is suspended: all run");
  out.info(fmt::format("resumed {} process{} in {}", report.pids.size(), report.pids.size() == 1 ? "" : "es",
                       human_us(report.restore_us)));
}

}  // namespace

Command::Run add_suspend(VerbOptions& app) {
  auto flags = std::make_shared<SuspendFlags>();
  app.add_option("-p,--pid,-t,--tree", flags->pid, "The process, with all its descendants").required().positive();
  add_gpu_lock_timeout_flag(app, flags->gpu);
  return [flags](Context& context) -> Result<void> {
    CKPT_TRY(engine::check_process(flags->pid));
    CKPT_TRY_ASSIGN(engine::GpuOptions options, gpu_options(flags->gpu));
    CKPT_TRY_ASSIGN(engine::SuspendReport report, engine::suspend(flags->pid, options, context.cancel));
    print(context.out, report);
    return {};
  };
}

Command::Run add_resume(VerbOptions& app) {
  auto flags = std::make_shared<ResumeFlags>();
  app.add_option("-p,--pid,-t,--tree", flags->pids, "The process, with all its descendants; may be given several times")
      .required()
      .positive();
  app.add_option("--after", flags->after, "Wait until this other process has ended").positive().type_name("PID");
  app.add_option("--parked", flags->parked, "With --after: the socket by which the other ckpt hands over device memory")
      .type_name("FD")
      .hidden();
  add_gpu_map_flag(app, flags->gpu);
  return [flags](Context& context) -> Result<void> {
    CKPT_TRY_ASSIGN(engine::GpuOptions options, gpu_options(flags->gpu));
    auto resumed = flags->after != 0
                       ? engine::resume_after(flags->after, flags->parked, flags->pids, options, context.cancel)
                       : engine::resume(flags->pids, options);
    CKPT_TRY_ASSIGN(engine::ResumeReport report, std::move(resumed));
    print(context.out, report);
    return {};
  };
}

}  // namespace ckpt::cli
