#include "lib/memory/device/offload.h"

#include <fmt/format.h>

#include <algorithm>

namespace ckpt::capture {

Result<void> DeviceOffload::take(device::Target& target, const device::Allocation& allocation,
                              const std::vector<device::Device*>& devices) {
  CKPT_TRY_ASSIGN(const std::string uuid, target.device_uuid(allocation.device));
  auto device =
      std::find_if(devices.begin(), devices.end(), [&](const auto* d) { return d->properties().uuid == uuid; });
  if (device == devices.end())
    return fail(Code::kUnsupported, uuid, "is a device of the process that ckpt does not see");
  Held held{&target, allocation, {}, nullptr};
  CKPT_TRY_ASSIGN(held.fd, target.export_allocation(allocation.id));
  CKPT_TRY_ASSIGN(held.memory, (*device)->import(held.fd.get(), allocation.size));
  CKPT_TRY(target.release(allocation.id));
  held_.push_back(std::move(held));
  return {};
}

Result<DeviceOffload> DeviceOffload::offload(const std::vector<device::Target*>& targets,
                                    const std::vector<device::Device*>& devices) {
  DeviceOffload out;
  auto all = [&]() -> Result<void> {
    for (device::Target* target : targets) {
      CKPT_TRY_ASSIGN(const std::vector<device::Allocation> allocations, target->allocations());
      for (const device::Allocation& allocation : allocations) {
        if (allocation.kind == device::MemoryKind::kOwned && !allocation.released)
          CKPT_TRY(out.take(*target, allocation, devices));
      }
    }
    return {};
  };
  Result<void> taken = all();
  if (taken) return out;
  Result<void> back = out.give_back();
  if (!back && back.error().code == Code::kTargetAltered) return std::move(back).error();
  return std::move(taken).error();
}

DeviceOffload::~DeviceOffload() { (void)give_back(); }

Result<void> DeviceOffload::give_back() {
  Result<void> first;
  std::erase_if(held_, [&](Held& held) {
    Result<void> attached = held.target->attach(held.allocation.id, held.fd.get());
    // Of a process that has ended nothing is owed.
    const bool gone = !attached && attached.error().code == Code::kNotFound;
    if (first && !attached) first = std::move(attached);
    return gone || attached.has_value();
  });
  if (held_.empty()) return first;
  const int pid = held_.front().target->pid();
  const auto lost =
      std::count_if(held_.begin(), held_.end(), [&](const Held& held) { return held.target->pid() == pid; });
  Error error = std::move(first).error();
  return std::move(error).with_code(Code::kTargetAltered).with_target(
      fmt::format("process {} has lost {} of its device allocations; ckpt still has them", pid, lost));
}

Result<void> DeviceOffload::for_each(const std::function<Result<void>(int pid, uint64_t id, int fd)>& with) const {
  for (const Held& held : held_) CKPT_TRY(with(held.target->pid(), held.allocation.id, held.fd.get()));
  return {};
}

uint64_t DeviceOffload::bytes() const {
  uint64_t out = 0;
  for (const Held& held : held_) out += held.allocation.size;
  return out;
}

}  // namespace ckpt::capture
