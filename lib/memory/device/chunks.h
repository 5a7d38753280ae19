// What an image has of device memory while it comes about: allocations of targets, cut into chunks, and of each chunk
// the hash of exactly those bytes that the image would give back. A chunk whose live hash is that one need not be
// copied, however torn the moment was at which it was.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/checked.h"
#include "lib/base/result.h"
#include "lib/device/device.h"
#include "lib/device/target.h"
#include "lib/store/image.h"

namespace ckpt::capture {

/// One chunk is one block of the image.
constexpr uint64_t kDeviceChunk = store::kBlockSize;
static_assert(kDeviceChunk >= device::kMinChunk && kDeviceChunk <= device::kMaxChunk);

/// The hash of a chunk of zeros.
const device::ChunkHash& zero_chunk_hash();

/// A process of the tree, and the memory space that its device memory has in the image.
struct DeviceSource {
  device::Target* target = nullptr;
  int space = 0;
};

/// Calls `each` with the address of every chunk that a range touches, of a range that lies in several: so many times.
template <class Each>
void for_chunks(const std::vector<device::Range>& ranges, Each each) {
  for (const device::Range& range : ranges) {
    for (uint64_t at = align_down(range.start.value, kDeviceChunk); at < range.end().value; at += kDeviceChunk)
      each(at);
  }
}

/// One owned allocation.
struct DeviceRegion {
  size_t source = 0;
  device::Allocation allocation;
  std::string uuid;                       ///< of its device
  std::vector<device::ChunkHash> image;   ///< by chunk: of what the image has, where `known`
  std::vector<bool> known;
  std::vector<device::ChunkHash> live;    ///< as last hashed
  std::vector<device::ChunkHash> start;   ///< when recording began; empty: it was not there then
  device::Range local;                    ///< where ckpt has it mapped; empty: not
  size_t chunks() const { return allocation.size / kDeviceChunk; }
  device::Address address(size_t chunk) const { return allocation.address + chunk * kDeviceChunk; }
  device::Address local_address(size_t chunk) const { return local.start + chunk * kDeviceChunk; }
  /// The image would give back what was last hashed.
  bool is_current(size_t chunk) const { return known[chunk] && image[chunk] == live[chunk]; }
};

struct ChunkRef {
  DeviceRegion* region = nullptr;
  size_t chunk = 0;
};

/// The owned allocations of several targets, imported into ckpt, over changes of what there is. Moved, never copied.
class ChunkMap {
 public:
  ChunkMap(std::vector<DeviceSource> sources, std::vector<device::Device*> devices)
      : sources_(std::move(sources)), devices_(std::move(devices)) {}

  /// Asks every target. What is gone is forgotten, with its import; nothing may be at work on it. kUnsupported: an
  /// allocation is not of whole chunks, or on a device that ckpt was not given.
  Result<void> refresh();
  /// What an earlier image has of an allocation: used from the next `refresh` on, for the first one at that place, if
  /// it has that size. For a later one it would be wrong: chunks that were pre-copied hide what the earlier image
  /// has.
  void expect(int space, device::Range range, std::vector<device::ChunkHash> hashes);

  const std::vector<DeviceSource>& sources() const { return sources_; }
  const std::vector<device::Device*>& devices() const { return devices_; }
  std::vector<DeviceRegion*> regions();
  std::vector<DeviceRegion*> regions_on(const device::Device& device);
  std::vector<DeviceRegion*> regions_of(size_t source);
  int space(const DeviceRegion& region) const { return sources_[region.source].space; }

 private:
  struct Entry {
    DeviceRegion region;
    std::unique_ptr<device::Buffer> import;
  };
  Result<device::Device*> device_of(const DeviceRegion& region) const;
  Result<void> add(size_t source, const device::Allocation& allocation);

  std::vector<DeviceSource> sources_;
  std::vector<device::Device*> devices_;
  std::map<std::pair<size_t, uint64_t>, Entry> entries_;  ///< by source and id
  std::map<std::pair<int, uint64_t>, std::vector<device::ChunkHash>> expected_;  ///< by space and address
};

}  // namespace ckpt::capture
