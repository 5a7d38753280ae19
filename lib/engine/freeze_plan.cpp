#include "lib/engine/freeze_plan.h"

#include <algorithm>

#include "lib/engine/downtime.h"
#include "lib/proc/usage.h"

namespace ckpt::engine {

void MadviseWatch::ask() {
  thread_.submit([this] { return answer_ = capture::advice_unchanged(running_), Result<void>(); });
}

Result<bool> MadviseWatch::unchanged() {
  CKPT_TRY(thread_.finish());
  return !answer_ || *answer_;
}

namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

/// What the freeze window would have to copy of private memory.
uint64_t bytes_to_copy(Tracees& tracees, const PrecopyLoop& precopy) {
  uint64_t bytes = precopy.bytes_left();
  const capture::Inventory& running = tracees.running();
  for (auto& [pid, tracee] : tracees.all()) {
    const int index = running.find(pid);
    if (index < 0 || running.image.processes[static_cast<size_t>(index)].memory_of >= 0) continue;
    tracee.private_pages = proc::read_private_pages(pid);
    if (!precopy.has(pid)) bytes += tracee.private_pages * store::kPageSize;
  }
  return bytes;
}

/// A fork makes them copy-on-write: who writes to one afterwards needs one more, and gets SIGBUS where there is none.
bool has_huge_pages(const capture::Inventory& running) {
  const auto& processes = running.image.processes;
  return std::any_of(processes.begin(), processes.end(), [](const store::ProcessImage& process) {
    return std::any_of(process.maps.begin(), process.maps.end(),
                       [](const store::MemoryMap& map) { return map.kind == store::MappingKind::kHugePages; });
  });
}

}  // namespace

FreezePlan::FreezePlan(CaptureContext& context, Tracees& tracees, const PrecopyLoop& precopy)
    : madvise_(tracees.running()) {
  const DumpOptions& options = context.options;
  const Downtime downtime(tracees.running(), options, context.runs_on());
  const uint64_t bytes = bytes_to_copy(tracees, precopy);
  const uint64_t limit = options.max_memory > 64 * kMebibyte ? options.max_memory - 64 * kMebibyte : 0;
  // Past the limit the copy goes through to the image while the tree is frozen.
  const uint64_t copy_us = downtime.copying_us(bytes) * (bytes > limit ? 4 : 1);
  if (context.runs_on() && downtime.fork_us() < copy_us && !has_huge_pages(tracees.running()))
    copy_ = Copy::kSnapshot;
  const uint64_t stage = (snapshots() ? 0 : bytes + bytes / 4) + downtime.contents_bytes();
  // What would not fit is not made: it is costly to fault in.
  if (stage <= limit) staging_ = capture::Staging::make(std::min(stage + kMebibyte, limit), limit);
  constexpr size_t kWorthThreads = 4;
  if (tracees.members().size() >= kWorthThreads || downtime.private_bytes() > 8 * kMebibyte)
    make_helpers(options.workers, pool_);
}

}  // namespace ckpt::engine
