#include "lib/memory/device/capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"

namespace ckpt::capture {

using device::Address;
using device::ChunkHash;
using device::Range;

namespace {

/// One thread a device: each has a bus of its own.
Result<void> for_devices(const std::vector<device::Device*>& devices,
                         const std::function<Result<void>(device::Device&)>& work) {
  if (devices.size() == 1) return work(*devices.front());
  WorkerPool pool(static_cast<unsigned>(devices.size()));
  for (device::Device* device : devices) {
    if (!pool.submit([&work, device] { return work(*device); })) break;
  }
  return pool.finish();
}

}  // namespace

std::vector<device::Target*> DeviceCapture::targets() const {
  std::vector<device::Target*> out;
  for (const DeviceSource& source : map_.sources()) out.push_back(source.target);
  return out;
}

Result<StagingRing*> DeviceCapture::ring(device::Device& device) {
  auto& ring = rings_[device.properties().uuid];
  if (!ring) {
    CKPT_TRY_ASSIGN(ring, StagingRing::create(device, options_.staging));
  }
  return ring.get();
}

/// Rings first, one after the other: the threads only look them up.
Result<void> DeviceCapture::hash_live() {
  for (device::Device* device : map_.devices()) {
    if (!map_.regions_on(*device).empty()) CKPT_TRY(ring(*device));
  }
  return for_devices(map_.devices(), [&](device::Device& device) -> Result<void> {
    const std::vector<DeviceRegion*> regions = map_.regions_on(device);
    if (regions.empty()) return {};
    std::vector<Range> ranges;
    for (const DeviceRegion* region : regions) ranges.push_back(region->local);
    CKPT_TRY_ASSIGN(std::vector<ChunkHash> hashes, rings_.at(device.properties().uuid)->hash(ranges, kDeviceChunk));
    auto at = hashes.begin();
    for (DeviceRegion* region : regions) {
      std::copy_n(at, region->chunks(), region->live.begin());
      at += static_cast<ptrdiff_t>(region->chunks());
    }
    return {};
  });
}

Result<DeviceCapture::Chosen> DeviceCapture::differing() {
  CKPT_TRY(map_.refresh());
  CKPT_TRY(hash_live());
  Chosen out;
  for (DeviceRegion* region : map_.regions()) {
    for (size_t i = 0; i < region->chunks(); ++i) {
      if (!region->is_current(i)) out.push_back({region, i});
    }
  }
  return out;
}

/// What is zero by its hash is taken out of `chosen`.
Result<void> DeviceCapture::note_zeros(Chosen& chosen, Word word, DevicePass& pass) {
  const ChunkHash& zero = zero_chunk_hash();
  for (const ChunkRef& ref : chosen) {
    if (ref.region->live[ref.chunk] != zero) continue;
    const int space = map_.space(*ref.region);
    const Address at = ref.region->address(ref.chunk);
    CKPT_TRY(word == Word::kLast ? sink_.zero(space, at) : sink_.pre_copied_zero(space, at, iterations_));
    ref.region->image[ref.chunk] = zero;
    ref.region->known[ref.chunk] = true;
    ++pass.zero;
  }
  std::erase_if(chosen, [&](const ChunkRef& ref) { return ref.region->live[ref.chunk] == zero; });
  return {};
}

/// `from`: where the bytes are, in ckpt's own addresses of the device. Their hashes become those of the image.
Result<void> DeviceCapture::copy(device::Device& device, const Chosen& chosen, const std::vector<Address>& from,
                                 Word word) {
  if (chosen.empty()) return {};
  std::vector<ChunkHash> taken(chosen.size());
  StagingRing& ring = *rings_.at(device.properties().uuid);
  CKPT_TRY(ring.to_host(from, kDeviceChunk, [&](size_t i, ByteSpan bytes, const ChunkHash& hash) -> Result<void> {
    const ChunkRef& ref = chosen[i];
    taken[i] = hash;
    const int space = map_.space(*ref.region);
    const Address at = ref.region->address(ref.chunk);
    return word == Word::kLast ? sink_.last(space, at, bytes) : sink_.pre_copied(space, at, bytes, iterations_);
  }));
  for (size_t i = 0; i < chosen.size(); ++i) {
    chosen[i].region->image[chosen[i].chunk] = taken[i];
    chosen[i].region->known[chosen[i].chunk] = true;
  }
  return {};
}

Result<void> DeviceCapture::copy_all(const Chosen& chosen, Word word, DevicePass& pass) {
  std::atomic<uint64_t> copied{0};
  CKPT_TRY(for_devices(map_.devices(), [&](device::Device& device) -> Result<void> {
    Chosen here;
    std::vector<Address> from;
    for (const ChunkRef& ref : chosen) {
      if (ref.region->uuid != device.properties().uuid) continue;
      here.push_back(ref);
      from.push_back(ref.region->local_address(ref.chunk));
    }
    CKPT_TRY(copy(device, here, from, word));
    copied += here.size();
    return {};
  }));
  pass.copied += copied;
  return {};
}

Result<DevicePass> DeviceCapture::iterate() {
  trace::Span span("device iteration");
  DevicePass out;
  CKPT_TRY_ASSIGN(Chosen chosen, differing());
  for (const DeviceRegion* region : map_.regions()) out.chunks += region->chunks();
  out.kept = out.chunks - chosen.size();
  CKPT_TRY(note_zeros(chosen, Word::kAhead, out));
  CKPT_TRY(copy_all(chosen, Word::kAhead, out));
  ++iterations_;
  return out;
}

Result<uint64_t> DeviceCapture::dirty_bytes() {
  CKPT_TRY_ASSIGN(Chosen chosen, differing());
  return chosen.size() * kDeviceChunk;
}

Result<void> DeviceCapture::scan() {
  CKPT_TRY(differing());
  return {};
}

Result<DevicePass> DeviceCapture::copy_missing(const std::function<bool(const ChunkRef&)>& elsewhere) {
  trace::Span span("device delta");
  DevicePass out;
  Chosen chosen;
  kept_.clear();
  for (DeviceRegion* region : map_.regions()) {
    for (size_t i = 0; i < region->chunks(); ++i) {
      ++out.chunks;
      if (elsewhere && elsewhere({region, i})) {
        region->image[i] = region->live[i];
        continue;
      }
      (region->is_current(i) ? kept_ : chosen).push_back({region, i});
    }
  }
  out.kept = kept_.size();
  CKPT_TRY(note_zeros(chosen, Word::kLast, out));
  CKPT_TRY(copy_all(chosen, Word::kLast, out));
  for (const ChunkRef& ref : chosen) {
    if (ref.region->is_current(ref.chunk)) continue;
    return Error(Code::kBusy, fmt::format("device memory at {:#x}", ref.region->address(ref.chunk).value),
                 "changed while nothing of the process ran on the device")
        .with_hint("another device, process or network card writes it");
  }
  return out;
}

Result<void> DeviceCapture::begin_recording(uint64_t limit) {
  CKPT_TRY_ASSIGN(DeviceStop stop, DeviceStop::begin(targets(), options_.stop_timeout_us));
  auto begin = [&]() -> Result<void> {
    CKPT_TRY(scan());
    for (DeviceRegion* region : map_.regions()) region->start = region->live;
    for (device::Target* target : targets()) CKPT_TRY(target->begin_recording(limit));
    return {};
  };
  Result<void> begun = begin();
  if (begun) {
    auto opened = stop.end();
    if (!opened) begun = std::move(opened).error();
  }
  if (!begun) (void)end_recording();
  return begun;
}

Result<void> DeviceCapture::end_recording() {
  Result<void> first;
  for (device::Target* target : targets()) {
    Result<void> ended = target->end_recording();
    if (first && !ended) first = std::move(ended);
  }
  return first;
}

Result<void> DeviceCapture::say_kept() {
  for (const ChunkRef& ref : std::exchange(kept_, {}))
    CKPT_TRY(sink_.keep(map_.space(*ref.region), ref.region->address(ref.chunk)));
  return {};
}

}  // namespace ckpt::capture
