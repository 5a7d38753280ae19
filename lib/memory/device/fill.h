// Device memory of a restored process: attached at its old addresses, filled from an image. Eagerly, with the API
// locked; or lazily: the API is unlocked at once, a launch waits until what it needs is there, and the rest is fetched
// ahead.
//
// What a launch needs is more than what its arguments name: kernels follow addresses that they find in memory. So what
// is filled is searched for words that are addresses of other allocations, and an allocation counts as filled when
// everything that can be reached from it is (as a conservative garbage collector looks at memory). Addresses that a
// kernel computes from something else are not found: a program that does so cannot be restored lazily.
//
// A chunk that is on the device already, in whichever allocation, is copied there and not sent again. What an
// allocation has in the end is hashed by the device and compared with the image's hashes.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "lib/memory/device/sink.h"
#include "lib/memory/device/staging.h"

namespace ckpt::capture {

struct FillReport {
  uint64_t chunks = 0;
  uint64_t sent = 0;             ///< over the bus
  uint64_t within_device = 0;    ///< copied from another place on the device
  uint64_t replayed = 0;         ///< launches
  std::vector<uint64_t> demanded;  ///< lazily: allocations that a launch waited for, in order
};

class DeviceFill {
 public:
  /// `memory`, and the hashes of its allocations in their order, as the image has them; all references outlive this.
  DeviceFill(device::Target& target, const store::DeviceMemory& memory,
             std::vector<std::vector<device::ChunkHash>> hashes, std::vector<device::Device*> devices,
             DeviceContent& content, const StagingOptions& options)
      : target_(target),
        memory_(memory),
        hashes_(std::move(hashes)),
        devices_(std::move(devices)),
        content_(content),
        options_(options) {}

  /// API locked. Fresh memory for every allocation, or for none. kNoRoom: before anything was touched where a device
  /// says beforehand that it has not so much. kMismatch: the process has other allocations than the image.
  Result<void> attach();
  /// API locked, before and after. Fills all, runs again what the image says, and compares every hash.
  Result<FillReport> eager();
  /// API locked before, unlocked after. Returns when all is there. On a failure launches that need what is not there
  /// wait on for ever: the error says that the process cannot be used. An image with launches is filled eagerly first.
  Result<FillReport> lazy();

 private:
  struct FilledAllocation {
    const store::DeviceAllocation* image = nullptr;
    const std::vector<device::ChunkHash>* hashes = nullptr;
    std::unique_ptr<device::Buffer> import;
    device::Device* device = nullptr;
    std::vector<bool> made;  ///< chunks that launches make
    bool there = false, told = false;
    std::set<size_t> leads_to;  ///< pieces that words in it are addresses of
    device::Address local(size_t chunk) const { return import->range().start + chunk * kDeviceChunk; }
  };
  using HashKey = std::pair<uint64_t, uint64_t>;
  static HashKey key(const device::ChunkHash& hash) { return {hash.lo, hash.hi}; }

  Result<void> check_allocations();
  Result<void> check_room();
  Result<void> import_all();
  Result<StagingRing*> ring(device::Device& device);
  Result<void> fill(FilledAllocation& piece, bool search);
  Result<void> send(FilledAllocation& piece, const std::vector<size_t>& chunks, bool search);
  Result<std::vector<size_t>> differing(FilledAllocation& piece);
  Result<void> put_right(FilledAllocation& piece, const std::vector<size_t>& wrong, bool searching);
  void search(FilledAllocation& piece, const device::ChunkHash& hash, ByteSpan bytes);
  Result<void> replay();
  Result<void> fill_in_turn();
  Result<void> take_demands(std::set<size_t>& urgent);
  Result<void> tell();
  size_t piece_at(uint64_t address) const;

  device::Target& target_;
  const store::DeviceMemory& memory_;
  std::vector<std::vector<device::ChunkHash>> hashes_;
  std::vector<device::Device*> devices_;
  DeviceContent& content_;
  StagingOptions options_;
  std::vector<FilledAllocation> pieces_;
  std::map<std::pair<std::string, HashKey>, device::Address> on_device_;  ///< where content is, by device
  std::mutex mutex_;
  std::map<HashKey, std::set<size_t>> leads_to_;  ///< of content that was searched
  FillReport report_;
  std::map<std::string, std::unique_ptr<StagingRing>> rings_;
};

}  // namespace ckpt::capture
