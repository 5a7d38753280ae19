// timeslice: jobs that do not fit on the GPUs side by side take turns.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "cli/gpu_flags.h"
#include "lib/base/duration.h"
#include "lib/base/text.h"
#include "lib/engine/check.h"
#include "lib/engine/timeslice.h"

namespace ckpt::cli {

namespace {

struct TimesliceFlags {
  std::vector<int> pids;
  std::string quantum = "30s";
  GpuFlags gpu;
};

void print(Console& out, const engine::Turn& turn) {
  if (out.json()) {
    const nlohmann::ordered_json doc = {{"schema", "ckpt.timeslice/1"},
                                        {"pid", turn.pid},
                                        {"suspend_us", turn.suspend_us},
                                        {"resume_us", turn.resume_us}};
    out.data(doc.dump() + "\n");
    return;
  }
  out.info(fmt::format("the turn of process {}: suspend {}, resume {}", turn.pid, human_us(turn.suspend_us),
                       human_us(turn.resume_us)));
}

Result<void> run_timeslice(Context& context, const TimesliceFlags& flags) {
  CKPT_TRY_ASSIGN(const uint64_t quantum_us, parse_duration(flags.quantum, "--quantum"));
  if (quantum_us < 1000) return fail(Code::kUsage, "--quantum", "has to be a millisecond at least");
  if (flags.pids.size() < 2 || std::set<int>(flags.pids.begin(), flags.pids.end()).size() != flags.pids.size())
    return fail(Code::kUsage, "timeslice", "takes two processes or more, each once");
  for (int pid : flags.pids) CKPT_TRY(engine::check_process(pid));
  CKPT_TRY_ASSIGN(const engine::GpuOptions options, gpu_options(flags.gpu));
  return engine::timeslice(
      flags.pids, quantum_us, options, [&](const engine::Turn& turn) { print(context.out, turn); }, context.cancel);
}

}  // namespace

Command::Run add_timeslice(VerbOptions& app) {
  auto flags = std::make_shared<TimesliceFlags>();
  app.add_option("PID", flags->pids, "The processes, each with all its descendants, in the order of their turns")
      .required()
      .positive();
  app.add_option("--quantum", flags->quantum, "How long a turn takes (default 30s)").type_name("TIME");
  add_gpu_lock_timeout_flag(app, flags->gpu);
  return [flags](Context& context) { return run_timeslice(context, *flags); };
}

}  // namespace ckpt::cli
