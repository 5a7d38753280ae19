// Capture of device memory, in three ways that may follow each other:
//
//   iterations     while kernels run: what differs from what the image has is copied out, and its hash is that of
//                  exactly the bytes that were copied, however torn
//   delta          at a stop: live memory is hashed, and only the chunks whose hash is not that of the image's bytes
//                  are copied. No guess about what kernels write is trusted; a hidden write is a hash that differs
//   copy-on-write  the hashes are taken at a stop, t1; after it what launches may write of that which the image has not
//                  is set aside on the device, and the bytes taken meanwhile must have the hashes of t1. Where they do
//                  not (a hidden write, no room), t1 is lost, and the image needs the delta of another stop, t2
//
// The image is of one moment, or there is none: a failure anywhere leaves the APIs unlocked, nothing set aside in the
// targets, and an image that is not committed.
#pragma once

#include <functional>

#include "lib/memory/device/chunks.h"
#include "lib/memory/device/sink.h"
#include "lib/memory/device/staging.h"
#include "lib/memory/device/stop.h"

namespace ckpt::capture {

struct DeviceOptions {
  StagingOptions staging;
  uint64_t stop_timeout_us = 10'000'000;
  uint64_t cow_budget = uint64_t{1} << 30;  ///< of device memory a target
};

/// What a pass did, in chunks.
struct DevicePass {
  uint64_t chunks = 0;   ///< looked at
  uint64_t copied = 0;   ///< came over the bus
  uint64_t zero = 0;     ///< known to be zeros by their hash, not copied
  uint64_t kept = 0;     ///< as the image, or its parent, has them
};

class DeviceCapture {
 public:
  /// `sink` and the devices outlive it. The devices are those that the targets use, by UUID.
  DeviceCapture(std::vector<DeviceSource> sources, std::vector<device::Device*> devices, DeviceSink& sink,
                const DeviceOptions& options)
      : map_(std::move(sources), std::move(devices)), sink_(sink), options_(options) {}
  DeviceCapture(const DeviceCapture&) = delete;
  DeviceCapture& operator=(const DeviceCapture&) = delete;
  ~DeviceCapture() { (void)drop_saved(); }

  ChunkMap& map() { return map_; }

  /// An iteration of pre-copy. Nothing is stopped.
  Result<DevicePass> iterate();
  /// What a delta would copy now, by hash; nothing is stopped.
  Result<uint64_t> dirty_bytes();

  /// Between `DeviceStop::begin` and its end: brings the image to this moment, and tells the final version of every
  /// chunk. Once.
  Result<DevicePass> delta() {
    CKPT_TRY(scan());
    CKPT_TRY_ASSIGN(const DevicePass out, copy_missing());
    CKPT_TRY(say_kept());
    return out;
  }
  /// Its steps. First the regions are up to date and hashed.
  Result<void> scan();
  /// Then what the image has not of this moment is brought to it; the agents are not spoken to. Chunks of which
  /// `elsewhere` is true are left to the caller: the image gets no word about them, and describes them with the hash
  /// that they have now. kBusy: memory changed behind locked APIs (another device, a network card); there is no image
  /// of this moment.
  Result<DevicePass> copy_missing(const std::function<bool(const ChunkRef&)>& elsewhere = {});
  /// The words about chunks that the image has already can be said with unlocked APIs (0.3 us each: half a second for
  /// 80 GiB outside of the freeze window).
  Result<void> say_kept();

  /// At a short stop: the targets write down what they launch from now on (no more than `limit` each), and what memory
  /// was like then is known by hash. For `delta_with_replay`. APIs are unlocked afterwards; on a failure nothing is
  /// recorded.
  Result<void> begin_recording(uint64_t limit);
  /// All of them, as far as there are targets; the first failure. `delta_with_replay` ends it, too.
  Result<void> end_recording();
  /// The live hashes of all regions, as they are now.
  Result<void> hash_live();
  Result<StagingRing*> ring(device::Device& device);

  /// Copy-on-write, in place of a delta. At the stop, after `scan`: the bytes that the image has not. Where the budget
  /// holds them nothing but a hidden write, or device memory that runs out, can lose t1.
  uint64_t missing_bytes();
  /// APIs locked and drained still, or again, and nothing was written since `scan`.
  Result<void> begin_cow();
  struct Snapshot {
    DevicePass pass;
    uint64_t lost = 0;        ///< chunks of t1 that could not be had
    uint64_t from_saved = 0;  ///< chunks that came from what was set aside
  };
  /// APIs unlocked. Copies what was missing; nothing is set aside afterwards. Where chunks are lost the image is of no
  /// moment until `delta` makes it one of another stop.
  Result<Snapshot> end_cow();

 private:
  using Chosen = std::vector<ChunkRef>;
  enum class Word { kAhead, kLast };
  Result<void> copy(device::Device& device, const Chosen& chosen, const std::vector<device::Address>& from, Word word);
  Result<void> copy_all(const Chosen& chosen, Word word, DevicePass& pass);
  Result<void> note_zeros(Chosen& chosen, Word word, DevicePass& pass);
  Result<Chosen> take_saved(const Chosen& chosen, uint64_t& from_saved);
  Result<Chosen> differing();
  Result<Chosen> copy_first(DevicePass& pass);
  Result<void> drop_saved();
  std::vector<device::Target*> targets() const;

  ChunkMap map_;
  DeviceSink& sink_;
  DeviceOptions options_;
  unsigned iterations_ = 0;
  Chosen kept_;  ///< what is left to `say_kept`
  std::vector<device::Target*> cow_;  ///< those that set aside what they write
  std::map<std::string, std::unique_ptr<StagingRing>>
      rings_;  ///< by device; behind the map: they are at work on its imports
};

}  // namespace ckpt::capture
