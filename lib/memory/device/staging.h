// Between a device and the host: a ring of pinned blocks, allocated once and used again and again (populating and
// pinning fresh host memory is slower than the copies themselves, 6.6 against 50 GB/s), with device memory beside it in
// which chunks are gathered. The device copies into one block while others are being written out.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/device/device.h"

namespace ckpt::capture {

struct StagingOptions {
  uint64_t block_bytes = 4 << 20;
  unsigned blocks = 8;
  unsigned workers = 0;  ///< that take what was copied; 0: one a core
  uint64_t timeout_us = 60'000'000;  ///< for one block
  const Cancel* cancel = nullptr;    ///< looked at before each block; null: none. Hashing and copies inside the device,
                                   ///< of milliseconds a GiB, are not broken off
};

class StagingRing {
 public:
  /// Without room on the device, chunks are gathered straight into host memory. kNoRoom: no pinned memory.
  static Result<std::unique_ptr<StagingRing>> create(device::Device& device, const StagingOptions& options);

  /// Copies the chunks at these addresses (ckpt's own) to the host. `take(i, bytes, hash)` gets chunk i and the hash of
  /// exactly these bytes, on several threads; the bytes are borrowed. Returns after the last. kBusy: a block was not
  /// there within the time, and the device may still be at work on the chunks (`retire`).
  using Take = std::function<Result<void>(size_t index, ByteSpan bytes, const device::ChunkHash& hash)>;
  Result<void> to_host(std::span<const device::Address> chunks, uint64_t chunk, const Take& take);

  /// The other way: `give(i, out)` writes the bytes of chunk i, on several threads.
  using Give = std::function<Result<void>(size_t index, MutableByteSpan out)>;
  Result<void> to_device(std::span<const device::Address> chunks, uint64_t chunk, const Give& give);

  /// The hashes of the chunks of these ranges, one after the other.
  Result<std::vector<device::ChunkHash>> hash(std::span<const device::Range> ranges, uint64_t chunk);

  /// Copies inside the device, chunk by chunk; done when it returns.
  struct Move {
    device::Address to, from;
  };
  Result<void> within_device(std::span<const Move> moves, uint64_t chunk);
  /// Zeros; done when it returns.
  Result<void> clear(std::span<const device::Address> chunks, uint64_t chunk);

  /// Frees memory that a copy of this ring's was to or from: at once, or with the ring where work is still going on
  /// there.
  void retire(std::unique_ptr<device::Buffer> memory);

 private:
  struct Block {
    std::unique_ptr<device::HostBuffer> host;  ///< data, and behind it their hashes
    std::unique_ptr<device::Buffer> staging;   ///< null: no room
    std::unique_ptr<device::Event> ready;
    bool free = true;
  };
  /// A worker's turn with a block; however it ends, the block is given back.
  struct Taken {
    StagingRing& ring;
    Block& block;
    bool failed = true;
    ~Taken() { ring.give_back(block, failed); }
  };
  explicit StagingRing(const StagingOptions& options) : options_(options) {}
  Block* next_free();
  void give_back(Block& block, bool failed);
  Result<void> submit(Block& block, std::span<const device::Address> chunks, uint64_t chunk);
  Result<void> take_all(std::span<const device::Address> chunks, uint64_t chunk, const Take& take);
  std::span<device::ChunkHash> hashes(Block& block, size_t count);
  Result<void> check_cancel() const { return options_.cancel != nullptr ? options_.cancel->check() : Result<void>(); }
  /// After a failure: nothing is at work in the blocks any more.
  void settle();

  StagingOptions options_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<device::Buffer>> retired_;
  std::unique_ptr<device::HostBuffer> hash_room_;  ///< of passes that only hash
  std::mutex mutex_;
  std::condition_variable changed_;
  bool failed_ = false;
  std::unique_ptr<device::Stream> stream_;  ///< the last: it waits in its destructor
};

}  // namespace ckpt::capture
