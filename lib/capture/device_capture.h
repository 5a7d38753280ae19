// Capture of device memory, in three ways that may follow each other:
//
//   rounds      while kernels run: what differs from what the image has is copied out, and its hash is that of exactly the
//               bytes that were copied, however torn
//   delta       at a stop: live memory is hashed, and only the chunks whose hash is not that of the image's bytes are copied.
//               No guess about what kernels write is trusted; a hidden write is a hash that differs
//   snapshot    copy-on-write: the hashes at t1 are taken at a short stop, what launches may write is set aside on the
//               device, and the bytes taken meanwhile must have the hashes of t1. Where they do not (a hidden write, the
//               budget), t1 is lost and the image becomes one of a second stop, t2
//
// The image is of one moment, or there is none: a failure anywhere leaves the gates open, nothing set aside in the
// targets, and an image that is not committed.
#pragma once

#include <functional>

#include "lib/capture/device_chunks.h"
#include "lib/capture/device_sink.h"
#include "lib/capture/device_staging.h"
#include "lib/capture/device_stop.h"

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
  DeviceCapture(std::vector<DeviceSource> sources, std::vector<device::Device*> devices, DeviceSink& sink, const DeviceOptions& options)
      : map_(std::move(sources), std::move(devices)), sink_(sink), options_(options) {}

  ChunkMap& map() { return map_; }

  /// A round of pre-copy. Nothing stands still.
  Result<DevicePass> round();
  /// What a delta would copy now, by hash; nothing stands still.
  Result<uint64_t> dirty_bytes();

  /// Between `DeviceStop::begin` and its end: brings the image to this moment, and says the last word about every chunk. Once.
  /// kBusy: memory changed behind closed gates (another device, a network card); there is no image of this moment.
  Result<DevicePass> delta();
  /// The same, in two parts: what needs the stop, and the words about chunks that the image has already, which can be said with
  /// open gates (0.3 us each: half a second for 80 GiB that nobody need stand still for).
  Result<DevicePass> delta_at_stop();
  Result<void> say_kept();
  /// `delta` in other two steps: first the regions are up to date and hashed; then the chunks of which `elsewhere` is not true are
  /// brought to the image. The others are left to the caller: the image gets no word about them, and describes them with the hash
  /// that they have now.
  Result<void> look();
  Result<DevicePass> finish(const std::function<bool(const ChunkRef&)>& elsewhere);

  /// At a short stop: the targets write down what they launch from now on (no more than `limit` each), and what memory was
  /// like then is known by hash. For `delta_with_replay`. Gates are open afterwards; on a failure nothing is recorded.
  Result<void> begin_recording(uint64_t limit);
  /// All of them, as far as there are targets; the first failure. `delta_with_replay` ends it, too.
  Result<void> end_recording();
  /// The live hashes of all regions, as they are now.
  Result<void> hash_live();
  Result<StagingRing*> ring(device::Device& device);

  enum class Moment {
    kFirst,   ///< t1, when `at_first` was called
    kSecond,  ///< t2, when `at_second` was called
  };
  struct Snapshot {
    Moment moment = Moment::kFirst;
    DevicePass pass;
    uint64_t lost = 0;        ///< chunks of t1 that could not be had
    uint64_t from_saved = 0;  ///< chunks that came from what was set aside
    uint64_t stop_us = 0, second_stop_us = 0;
  };
  /// Copy-on-write. `at_first` and `at_second` are called with closed gates, for what else belongs to the image of that
  /// moment; where `at_second` is empty, a lost t1 is kBusy, and there is no image. Gates are open afterwards.
  using AtStop = std::function<Result<void>()>;
  Result<Snapshot> snapshot(const AtStop& at_first, const AtStop& at_second);

 private:
  using Chosen = std::vector<ChunkRef>;
  enum class Word { kAhead, kLast };
  Result<void> copy(device::Device& device, const Chosen& chosen, const std::vector<device::Address>& from, Word word);
  Result<void> copy_all(const Chosen& chosen, Word word, DevicePass& pass);
  Result<void> note_zeros(Chosen& chosen, Word word, DevicePass& pass);
  Result<Chosen> take_saved(const Chosen& chosen, uint64_t& from_saved);
  Result<Chosen> differing();
  Result<Chosen> copy_first(Snapshot& out);
  Result<DevicePass> finish_at_stop(const std::function<bool(const ChunkRef&)>& elsewhere);
  std::vector<device::Target*> targets() const;

  ChunkMap map_;
  DeviceSink& sink_;
  DeviceOptions options_;
  unsigned rounds_ = 0;
  Chosen kept_;  ///< of `finish_at_stop`
  std::map<std::string, std::unique_ptr<StagingRing>> rings_;  ///< by device; behind the map: they are at work on its imports
};

}  // namespace ckpt::capture
