// The image of t1 while kernels go on (device_capture.h).
#include <algorithm>
#include <utility>

#include "lib/base/trace.h"
#include "lib/memory/device/capture.h"

namespace ckpt::capture {

using device::Address;
using device::Range;

uint64_t DeviceCapture::missing_bytes() {
  uint64_t chunks = 0;
  for (const DeviceRegion* region : map_.regions()) {
    for (size_t i = 0; i < region->chunks(); ++i) chunks += !region->is_current(i);
  }
  return chunks * kDeviceChunk;
}

/// What is zero by its hash needs no bytes.
Result<void> DeviceCapture::begin_cow() {
  std::map<size_t, std::vector<Range>> wanted;  // by source
  for (const DeviceRegion* region : map_.regions()) {
    for (size_t i = 0; i < region->chunks(); ++i) {
      if (region->is_current(i) || region->live[i] == zero_chunk_hash()) continue;
      std::vector<Range>& ranges = wanted[region->source];
      if (!ranges.empty() && ranges.back().end() == region->address(i)) ranges.back().size += kDeviceChunk;
      else ranges.push_back({region->address(i), kDeviceChunk});
    }
  }
  for (const auto& [source, ranges] : wanted) {
    cow_.push_back(map_.sources()[source].target);
    CKPT_TRY(cow_.back()->begin_cow(options_.cow_budget, ranges));
  }
  return {};
}

Result<void> DeviceCapture::drop_saved() {
  Result<void> first;
  for (device::Target* target : std::exchange(cow_, {})) {
    Result<void> ended = target->end_cow();
    if (first && !ended) first = std::move(ended);
  }
  return first;
}

/// Takes all that differs from the image, while kernels run; what came out other than it was at t1.
Result<DeviceCapture::Chosen> DeviceCapture::copy_first(DevicePass& pass) {
  Chosen chosen;
  kept_.clear();
  for (DeviceRegion* region : map_.regions()) {
    for (size_t i = 0; i < region->chunks(); ++i) {
      kept_.push_back({region, i});
      if (!region->is_current(i)) chosen.push_back({region, i});
    }
  }
  pass.chunks = kept_.size(), pass.kept = kept_.size() - chosen.size();
  CKPT_TRY(note_zeros(chosen, Word::kAhead, pass));
  CKPT_TRY(copy_all(chosen, Word::kAhead, pass));
  ++iterations_;
  std::erase_if(chosen, [](const ChunkRef& ref) { return ref.region->is_current(ref.chunk); });
  return chosen;
}

/// Takes chunks from what was set aside; those that are not there as they were at t1.
Result<DeviceCapture::Chosen> DeviceCapture::take_saved(const Chosen& chosen, uint64_t& from_saved) {
  for (size_t source = 0; source < map_.sources().size(); ++source) {
    Chosen here = chosen;
    std::erase_if(here, [&](const ChunkRef& ref) { return ref.region->source != source; });
    device::Target& target = *map_.sources()[source].target;
    if (here.empty() || std::find(cow_.begin(), cow_.end(), &target) == cow_.end()) continue;
    CKPT_TRY_ASSIGN(device::SavedTable table, target.saved(options_.staging.timeout_us));
    std::map<Address, device::SavedRange> saved;  // by where it was: no two overlap
    for (const device::SavedRange& range : table.saved) saved.emplace(range.original.start, range);
    for (device::Device* device : map_.devices()) {
      std::map<uint64_t, std::unique_ptr<device::Buffer>> imports;
      Chosen found;
      std::vector<Address> from;
      for (const ChunkRef& ref : here) {
        const Range range{ref.region->address(ref.chunk), kDeviceChunk};
        auto after = saved.upper_bound(range.start);
        if (after == saved.begin() || ref.region->uuid != device->properties().uuid) continue;
        const device::SavedRange& save = std::prev(after)->second;
        if (!save.original.contains(range)) continue;
        auto& import = imports[save.buffer];
        if (!import) {
          CKPT_TRY_ASSIGN(UniqueFd fd, target.export_saved(save.buffer));
          CKPT_TRY_ASSIGN(import, device->import(fd.get(), save.buffer_size));
        }
        found.push_back(ref);
        from.push_back(import->range().start + save.offset + (range.start - save.original.start));
      }
      if (found.empty()) continue;
      Result<void> copied = copy(*device, found, from, Word::kAhead);
      for (auto& [buffer, import] : imports) rings_.at(device->properties().uuid)->retire(std::move(import));
      CKPT_TRY(std::move(copied));
    }
  }
  ++iterations_;
  Chosen lost = chosen;
  std::erase_if(lost, [](const ChunkRef& ref) { return ref.region->is_current(ref.chunk); });
  from_saved = chosen.size() - lost.size();
  return lost;
}

Result<DeviceCapture::Snapshot> DeviceCapture::end_cow() {
  trace::Span span("device copy-on-write");
  Snapshot out;
  auto take = [&]() -> Result<void> {
    CKPT_TRY_ASSIGN(Chosen missing, copy_first(out.pass));
    CKPT_TRY_ASSIGN(Chosen lost, take_saved(missing, out.from_saved));
    out.pass.copied += out.from_saved;
    out.lost = lost.size();
    return {};
  };
  Result<void> taken = take(), dropped = drop_saved();
  CKPT_TRY(std::move(taken));
  CKPT_TRY(std::move(dropped));
  return out;
}

}  // namespace ckpt::capture
