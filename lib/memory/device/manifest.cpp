#include "lib/memory/device/manifest.h"

#include <algorithm>
#include <cstring>

namespace ckpt::capture {

using device::ChunkHash;
static_assert(sizeof(ChunkHash) == store::kDeviceHashSize);

Result<store::DeviceMemory> describe_device_memory(ChunkMap& map, size_t source, int process,
                                                   store::ImageWriter& writer) {
  store::DeviceMemory out;
  out.process = process;
  out.space = map.sources()[source].space;
  std::vector<DeviceRegion*> regions = map.regions_of(source);
  std::sort(regions.begin(), regions.end(),
            [](const auto* a, const auto* b) { return a->allocation.address < b->allocation.address; });
  for (const DeviceRegion* region : regions) {
    store::DeviceAllocation& allocation = out.allocations.emplace_back();
    allocation.id = region->allocation.id;
    allocation.address = region->allocation.address.value;
    allocation.size = region->allocation.size;
    allocation.uuid = region->uuid;
    CKPT_TRY_ASSIGN(allocation.hashes_offset, writer.append_pipe(std::as_bytes(std::span(region->image))));
  }
  return out;
}

Result<std::vector<ChunkHash>> read_device_hashes(const store::ImageReader& image,
                                                  const store::DeviceAllocation& allocation) {
  std::vector<ChunkHash> out(allocation.size / kDeviceChunk);
  const size_t size = out.size() * sizeof(ChunkHash);
  CKPT_TRY_ASSIGN(std::vector<std::byte> bytes, image.read_pipe(allocation.hashes_offset, size));
  if (bytes.size() != size) return fail(Code::kCorrupt, image.path().string(), "has not all hashes of device memory");
  std::memcpy(out.data(), bytes.data(), size);
  return out;
}

Result<void> expect_parent(ChunkMap& map, const store::ImageReader& parent, const store::DeviceMemory& memory) {
  for (const store::DeviceAllocation& allocation : memory.allocations) {
    if (!allocation.recomputed.empty()) continue;
    CKPT_TRY_ASSIGN(std::vector<ChunkHash> hashes, read_device_hashes(parent, allocation));
    map.expect(memory.space, {{allocation.address}, allocation.size}, std::move(hashes));
  }
  return {};
}

}  // namespace ckpt::capture
