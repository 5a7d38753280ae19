#include "lib/engine/renewal.h"

#include <set>

#include "lib/memory/device/stop.h"

namespace ckpt::engine {

namespace {

bool is_there(const device::Allocation& allocation) {
  return allocation.kind == device::MemoryKind::kOwned && !allocation.released;
}

Result<std::set<uint64_t>> refused_exports(device::Target& target) {
  std::set<uint64_t> out;
  CKPT_TRY_ASSIGN(const std::vector<device::Allocation> allocations, target.allocations());
  for (const device::Allocation& allocation : allocations) {
    if (!is_there(allocation)) continue;
    auto fd = target.export_allocation(allocation.id);
    if (fd || fd.error().code == Code::kNotFound) continue;  // freed meanwhile
    for (const Code no_answer : {Code::kBusy, Code::kNoRoom, Code::kInterrupted})
      if (fd.error().code == no_answer) return std::move(fd).error();
    out.insert(allocation.id);
  }
  return out;
}

}  // namespace

Result<void> renew_memory(const std::vector<int>& pids, const GpuOptions& options) {
  for (int pid : options.connect ? pids : std::vector<int>()) {
    auto target = options.connect(pid, 0);
    if (!target && target.error().code == Code::kNotFound) continue;
    if (!target) return std::move(target).error();
    CKPT_TRY_ASSIGN(capture::DeviceStop stop, capture::DeviceStop::begin({target->get()}, options.lock_timeout_us));
    CKPT_TRY_ASSIGN(const std::vector<device::Allocation> allocations, (*target)->allocations());
    for (const device::Allocation& allocation : allocations)
      if (is_there(allocation)) CKPT_TRY((*target)->renew(allocation.id, device::Renew::kAttached));
    CKPT_TRY(stop.end());
  }
  return {};
}

Result<uint64_t> make_exportable(device::Target& target, uint64_t timeout_us) {
  CKPT_TRY_ASSIGN(const std::set<uint64_t> refused, refused_exports(target));
  uint64_t bytes = 0;
  if (refused.empty()) return bytes;
  CKPT_TRY_ASSIGN(capture::DeviceStop stop, capture::DeviceStop::begin({&target}, timeout_us));
  CKPT_TRY_ASSIGN(const std::vector<device::Allocation> allocations, target.allocations());
  for (const device::Allocation& allocation : allocations) {
    if (!is_there(allocation) || refused.count(allocation.id) == 0) continue;
    CKPT_TRY(target.renew(allocation.id, device::Renew::kAny));
    bytes += allocation.size;
  }
  CKPT_TRY(stop.end());
  return bytes;
}

}  // namespace ckpt::engine
