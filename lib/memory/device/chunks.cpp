#include "lib/memory/device/chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace ckpt::capture {

const device::ChunkHash& zero_chunk_hash() {
  static const device::ChunkHash kHash = [] {
    const std::vector<std::byte> zeros(kDeviceChunk);
    return device::hash_chunk(zeros.data(), zeros.size());
  }();
  return kHash;
}

void ChunkMap::expect(int space, device::Range range, std::vector<device::ChunkHash> hashes) {
  if (hashes.size() == range.size / kDeviceChunk) expected_[{space, range.start.value}] = std::move(hashes);
}

Result<device::Device*> ChunkMap::device_of(const DeviceRegion& region) const {
  for (device::Device* device : devices_) {
    if (device->properties().uuid == region.uuid) return device;
  }
  return fail(Code::kUnsupported, region.uuid, "is a device of the process that ckpt does not see");
}

Result<void> ChunkMap::add(size_t source, const device::Allocation& allocation) {
  if (allocation.size == 0 || allocation.size % kDeviceChunk != 0 || allocation.address.value % kDeviceChunk != 0) {
    return fail(Code::kUnsupported, fmt::format("device memory at {:#x}", allocation.address.value),
                "is not of whole chunks");
  }
  constexpr uint64_t kEnd = uint64_t{1} << store::kSpaceShift;
  if (allocation.address.value >= kEnd || allocation.size > kEnd - allocation.address.value) {
    return fail(Code::kUnsupported, fmt::format("device memory at {:#x}", allocation.address.value),
                "is too far up for an image");
  }
  for (const auto& [key, entry] : entries_) {
    if (key.first != source || !entry.region.allocation.range().overlaps(allocation.range())) continue;
    return fail(Code::kCorrupt, fmt::format("device memory at {:#x}", allocation.address.value),
                "is told of twice by the process");
  }
  Entry entry;
  DeviceRegion& region = entry.region;
  region.source = source;
  region.allocation = allocation;
  device::Target& target = *sources_[source].target;
  CKPT_TRY_ASSIGN(region.uuid, target.device_uuid(allocation.device));
  CKPT_TRY_ASSIGN(device::Device * device, device_of(region));
  CKPT_TRY_ASSIGN(UniqueFd fd, target.export_allocation(allocation.id));
  CKPT_TRY_ASSIGN(entry.import, device->import(fd.get(), allocation.size));
  region.local = entry.import->range();
  region.image.resize(region.chunks());
  region.live.resize(region.chunks());
  region.known.resize(region.chunks());
  const int space = sources_[source].space;
  auto expected = expected_.find({space, allocation.address.value});
  if (expected != expected_.end() && expected->second.size() == region.chunks()) {
    region.image = std::move(expected->second);
    region.known.assign(region.chunks(), true);
  }
  // From here on the image may get content of its own for these addresses: what comes to them later is compared with
  // that.
  std::erase_if(expected_, [&](const auto& e) {
    return e.first.first == space && allocation.range().overlaps({{e.first.second}, e.second.size() * kDeviceChunk});
  });
  entries_[{source, allocation.id}] = std::move(entry);
  return {};
}

Result<void> ChunkMap::refresh() {
  for (size_t source = 0; source < sources_.size(); ++source) {
    CKPT_TRY_ASSIGN(std::vector<device::Allocation> allocations, sources_[source].target->allocations());
    std::set<uint64_t> there;
    for (const device::Allocation& allocation : allocations) {
      if (allocation.kind == device::MemoryKind::kOwned && !allocation.released) there.insert(allocation.id);
    }
    std::erase_if(entries_, [&](const auto& entry) {
      return entry.first.first == source && there.count(entry.first.second) == 0;
    });
    for (const device::Allocation& allocation : allocations) {
      if (there.count(allocation.id) == 0 || entries_.count({source, allocation.id}) != 0) continue;
      Result<void> added = add(source, allocation);
      if (added) continue;
      // While the target runs it may free what it has just told of.
      CKPT_TRY_ASSIGN(const std::vector<device::Allocation> now, sources_[source].target->allocations());
      if (std::any_of(now.begin(), now.end(), [&](const auto& a) { return a.id == allocation.id; }))
        return std::move(added).error();
    }
  }
  return {};
}

std::vector<DeviceRegion*> ChunkMap::regions() {
  std::vector<DeviceRegion*> out;
  for (auto& [key, entry] : entries_) out.push_back(&entry.region);
  return out;
}

std::vector<DeviceRegion*> ChunkMap::regions_on(const device::Device& device) {
  std::vector<DeviceRegion*> out = regions();
  std::erase_if(out, [&](const DeviceRegion* region) { return region->uuid != device.properties().uuid; });
  return out;
}

std::vector<DeviceRegion*> ChunkMap::regions_of(size_t source) {
  std::vector<DeviceRegion*> out = regions();
  std::erase_if(out, [&](const DeviceRegion* region) { return region->source != source; });
  return out;
}

}  // namespace ckpt::capture
