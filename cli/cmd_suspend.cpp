// suspend and resume: a GPU for another job, and back; lock and unlock, the first and the last step of it alone.
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cli/gpu_flags.h"
#include "cli/plural.h"
#include "lib/base/text.h"
#include "lib/engine/check.h"
#include "lib/engine/suspend.h"

namespace ckpt::cli {

namespace {

constexpr const char* kPids = "The process, with all its descendants; may be given several times";

void add_pids(VerbOptions& app, std::vector<int>& pids) {
  app.add_option("-p,--pid,-t,--tree", pids, kPids).required().positive();
}

using Work =
    std::function<Result<void>(Context& context, const std::vector<int>& pids, const engine::GpuOptions& options)>;

/// A verb on processes that are there. `waits`: for what the GPU does, --lock-timeout at most.
Command::Run add_verb(VerbOptions& app, bool waits, Work work) {
  struct Flags {
    std::vector<int> pids;
    GpuFlags gpu;
  };
  auto flags = std::make_shared<Flags>();
  add_pids(app, flags->pids);
  if (waits) add_gpu_lock_timeout_flag(app, flags->gpu);
  return [flags, work = std::move(work)](Context& context) -> Result<void> {
    for (int pid : flags->pids) CKPT_TRY(engine::check_process(pid));
    CKPT_TRY_ASSIGN(const engine::GpuOptions options, gpu_options(flags->gpu));
    return work(context, flags->pids, options);
  };
}

void print(Console& out, const char* verb, const engine::LockReport& report) {
  const bool locked = std::string_view(verb) == "lock";
  if (out.json()) {
    const nlohmann::ordered_json doc = {{"schema", std::string("ckpt.") + verb + "/1"},
                                        {"pids", report.pids},
                                        {"took_us", report.took_us},
                                        {"target_state", locked ? "locked" : "running"}};
    out.data(doc.dump() + "\n");
    return;
  }
  if (report.pids.empty()) return out.info("nothing is locked: all run");
  out.info(fmt::format("{}ed {} in {}", verb, counted(report.pids.size(), "process", "processes"),
                       human_us(report.took_us)));
}

void print(Console& out, const engine::SuspendReport& report) {
  for (const std::string& note : report.notes) out.info("note: " + escape_for_terminal(note));
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
  out.info(fmt::format("suspended {}: {} free; lock {}, checkpoint {}",
                       counted(report.pids.size(), "process", "processes"), freed.empty() ? "no memory" : freed,
                       human_us(report.lock_us), human_us(report.checkpoint_us)));
}

struct ResumeFlags {
  std::vector<int> pids;
  int after = 0, offloaded = -1;
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
  out.info(fmt::format("resumed {} in {}", counted(report.pids.size(), "process", "processes"),
                       human_us(report.restore_us)));
}

}  // namespace

Command::Run add_suspend(VerbOptions& app) {
  return add_verb(app, true, [](Context& context, const std::vector<int>& pids, const auto& options) -> Result<void> {
    CKPT_TRY_ASSIGN(engine::SuspendReport report, engine::suspend(pids, options, context.cancel));
    print(context.out, report);
    return {};
  });
}

Command::Run add_lock(VerbOptions& app) {
  return add_verb(app, true, [](Context& context, const std::vector<int>& pids, const auto& options) -> Result<void> {
    CKPT_TRY_ASSIGN(engine::LockReport report, engine::lock_gpus(pids, options, context.cancel));
    print(context.out, "lock", report);
    return {};
  });
}

Command::Run add_unlock(VerbOptions& app) {
  return add_verb(app, false, [](Context& context, const std::vector<int>& pids, const auto& options) -> Result<void> {
    CKPT_TRY_ASSIGN(engine::LockReport report, engine::unlock_gpus(pids, options));
    print(context.out, "unlock", report);
    return {};
  });
}

Command::Run add_resume(VerbOptions& app) {
  auto flags = std::make_shared<ResumeFlags>();
  add_pids(app, flags->pids);
  app.add_option("--after", flags->after, "Wait until this other process has ended").positive().type_name("PID");
  app.add_option("--offloaded", flags->offloaded,
                 "With --after: the socket by which the other ckpt hands over device memory")
      .type_name("FD")
      .hidden();
  add_gpu_map_flag(app, flags->gpu);
  return [flags](Context& context) -> Result<void> {
    CKPT_TRY_ASSIGN(engine::GpuOptions options, gpu_options(flags->gpu));
    auto resumed = flags->after != 0
                       ? engine::resume_after(flags->after, flags->offloaded, flags->pids, options, context.cancel)
                       : engine::resume(flags->pids, options);
    CKPT_TRY_ASSIGN(engine::ResumeReport report, std::move(resumed));
    print(context.out, report);
    return {};
  };
}

}  // namespace ckpt::cli
