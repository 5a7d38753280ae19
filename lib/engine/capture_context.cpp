#include "lib/engine/capture_context.h"

#include <algorithm>
#include <filesystem>

#include "lib/base/trace.h"
#include "lib/engine/check.h"
#include "lib/proc/procfs.h"
#include "lib/state/namespaces/entered.h"

namespace ckpt::engine {

CaptureContext::CaptureContext(Verb v, const DumpOptions& o, ProgressSink& p, const Cancel& c)
    : verb(v),
      after(v == Verb::kPreDump ? DumpOptions::After::kLeaveRunning : o.after),
      options(o),
      progress(p),
      cancel(c) {}

Result<void> CaptureContext::check_end() const {
  const bool is_init = options.pid == 1 && state::entered() != nullptr;
  if (is_init && after == DumpOptions::After::kLeaveStopped) {
    return fail(Code::kUnsupported, proc::describe_pid(options.pid),
                "is the init of its pid namespace, which cannot be left stopped: end it, or leave it running (-R)");
  }
  if (!ends() || options.force || may_restore()) return {};
  return Error(Code::kPermission, proc::describe_pid(options.pid), why_not_restored() + ", so it is not ended")
      .with_hint(
          "-R leaves it running, -s stopped; --force ends it all the same, for somebody with CAP_CHECKPOINT_RESTORE to "
          "restore");
}

Result<void> CaptureContext::act(const char* action) const {
  return options.actions.run(action, options.pid, std::filesystem::absolute(options.dir), cancel);
}

void CaptureContext::phase(const char* name) {
  const uint64_t begin = watch_.started_us(), took = watch_.lap_us();
  auto& phases = stats().phases_us;
  auto same = std::find_if(phases.begin(), phases.end(), [&](const auto& other) { return other.first == name; });
  if (same != phases.end()) same->second += took;  // an iteration after the preparations
  else phases.emplace_back(name, took);
  trace::interval(trace::Row::kPhases, name, begin, begin + took);
}

capture::SocketOptions CaptureContext::sockets() const {
  capture::SocketOptions out = options.sockets;
  out.tcp_established = out.tcp_established || options.together != nullptr;
  return out;
}

capture::InventoryOptions CaptureContext::running_options(const capture::Inventory* just_before) const {
  return {.external = options.external,
          .ghost_limit = options.ghost_limit,
          .contents = options.contents,
          .sockets = sockets(),
          .external_mounts = options.external_mounts,
          .empty_network = options.empty_network,
          .gpus_leave = options.gpu.policy != GpuOptions::Policy::kOff,
          .ends = !runs_on(),
          .just_before = just_before};
}

capture::InventoryOptions CaptureContext::frozen_options(const capture::Inventory& earlier, WorkerPool* pool) const {
  return {.external = options.external,
          .ghost_limit = options.ghost_limit,
          .contents = options.contents,
          .sockets = sockets(),
          .external_mounts = options.external_mounts,
          .empty_network = options.empty_network,
          .ends = !runs_on(),
          .frozen = true,
          .earlier = &earlier,
          .pool = pool};
}

}  // namespace ckpt::engine
