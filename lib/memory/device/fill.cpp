#include "lib/memory/device/fill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/trace.h"

namespace ckpt::capture {

using device::Address;
using device::ChunkHash;

namespace {

constexpr size_t kNowhere = ~size_t{0};

}  // namespace

Result<StagingRing*> DeviceFill::ring(device::Device& device) {
  auto& ring = rings_[device.properties().uuid];
  if (!ring) {
    CKPT_TRY_ASSIGN(ring, StagingRing::create(device, options_));
  }
  return ring.get();
}

Result<void> DeviceFill::check_allocations() {
  CKPT_TRY_ASSIGN(const std::vector<device::Allocation> allocations, target_.allocations());
  std::map<uint64_t, device::Allocation> released;
  for (const device::Allocation& a : allocations) {
    if (a.kind == device::MemoryKind::kOwned && a.released) released[a.id] = a;
  }
  bool same = released.size() == memory_.allocations.size() && hashes_.size() == memory_.allocations.size();
  for (const store::DeviceAllocation& a : memory_.allocations) {
    auto found = released.find(a.id);
    same = same && found != released.end() && found->second.address.value == a.address && found->second.size == a.size;
  }
  if (!same)
    return fail(Code::kMismatch, fmt::format("{}", target_.pid()),
                "the process has other device allocations than the image");
  for (size_t i = 0; i < memory_.allocations.size(); ++i) {
    FilledAllocation& piece = pieces_.emplace_back();
    piece.image = &memory_.allocations[i];
    piece.hashes = &hashes_[i];
    piece.made.resize(hashes_[i].size());
    for (const store::DeviceRun& run : piece.image->recomputed) {
      std::fill_n(piece.made.begin() + static_cast<ptrdiff_t>(run.first), run.count, true);
    }
    CKPT_TRY_ASSIGN(const std::string uuid, target_.device_uuid(released[piece.image->id].device));
    auto device =
        std::find_if(devices_.begin(), devices_.end(), [&](const auto* d) { return d->properties().uuid == uuid; });
    if (device == devices_.end())
      return fail(Code::kUnsupported, uuid, "is a device of the process that ckpt does not see");
    piece.device = *device;
  }
  return {};
}

Result<void> DeviceFill::check_room() {
  for (device::Device* device : devices_) {
    uint64_t need = 0;
    for (const FilledAllocation& piece : pieces_) need += piece.device == device ? piece.image->size : 0;
    CKPT_TRY_ASSIGN(const device::MemoryInfo info, device->memory_info());
    if (need > info.free_bytes) {
      return fail(Code::kNoRoom, device->properties().uuid,
                  fmt::format("{} bytes are free, {} are needed", info.free_bytes, need));
    }
  }
  return {};
}

Result<void> DeviceFill::import_all() {
  for (FilledAllocation& piece : pieces_) {
    CKPT_TRY(target_.attach(piece.image->id, -1));
    piece.there = true;  // for the moment: it is attached
    CKPT_TRY_ASSIGN(UniqueFd fd, target_.export_allocation(piece.image->id));
    CKPT_TRY_ASSIGN(piece.import, piece.device->import(fd.get(), piece.image->size));
  }
  return {};
}

Result<void> DeviceFill::attach() {
  pieces_.clear();
  CKPT_TRY(check_allocations());
  CKPT_TRY(check_room());
  Result<void> done = import_all();
  for (FilledAllocation& piece : pieces_) {
    if (!done && piece.there) (void)target_.release(piece.image->id);
    piece.there = false;
  }
  if (!done) pieces_.clear();
  return done;
}

size_t DeviceFill::piece_at(uint64_t address) const {
  const auto before = [](uint64_t at, const FilledAllocation& piece) { return at < piece.image->address; };
  auto after = std::upper_bound(pieces_.begin(), pieces_.end(), address, before);
  if (after == pieces_.begin()) return kNowhere;
  const auto found = std::prev(after);
  return address - found->image->address < found->image->size ? static_cast<size_t>(found - pieces_.begin()) : kNowhere;
}

/// Notes what the words of a chunk are addresses of.
void DeviceFill::search(FilledAllocation& piece, const ChunkHash& hash, ByteSpan bytes) {
  const uint64_t first = pieces_.front().image->address;
  const uint64_t span = pieces_.back().image->address + pieces_.back().image->size - first;
  std::set<size_t> found;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if (word - first >= span) continue;
    if (const size_t to = piece_at(word); to != kNowhere) found.insert(to);
  }
  if (found.empty()) return;
  std::lock_guard lock(mutex_);
  piece.leads_to.insert(found.begin(), found.end());
  leads_to_[key(hash)] = std::move(found);
}

Result<void> DeviceFill::send(FilledAllocation& piece, const std::vector<size_t>& chunks, bool searching) {
  std::vector<Address> to;
  for (size_t chunk : chunks) to.push_back(piece.local(chunk));
  CKPT_TRY(rings_.at(piece.device->properties().uuid)
               ->to_device(to, kDeviceChunk, [&](size_t i, MutableByteSpan out) -> Result<void> {
                 CKPT_TRY(content_.read(memory_.space, {piece.image->address + chunks[i] * kDeviceChunk}, out));
                 if (searching) search(piece, (*piece.hashes)[chunks[i]], out);
                 return {};
               }));
  report_.sent += chunks.size();
  return {};
}

/// Chunks that are not as the image says; those that launches make are left out.
Result<std::vector<size_t>> DeviceFill::differing(FilledAllocation& piece) {
  const device::Range range = piece.import->range();
  CKPT_TRY_ASSIGN(const std::vector<ChunkHash> live,
                  rings_.at(piece.device->properties().uuid)->hash({&range, 1}, kDeviceChunk));
  std::vector<size_t> out;
  for (size_t i = 0; i < live.size(); ++i) {
    if (!piece.made[i] && live[i] != (*piece.hashes)[i]) out.push_back(i);
  }
  return out;
}

/// Sends chunks that are not as the image says, and looks again.
Result<void> DeviceFill::put_right(FilledAllocation& piece, const std::vector<size_t>& wrong, bool searching) {
  if (wrong.empty()) return {};
  CKPT_TRY(send(piece, wrong, searching));
  CKPT_TRY_ASSIGN(const std::vector<size_t> still, differing(piece));
  if (still.empty()) return {};
  return fail(Code::kCorrupt,
              fmt::format("device memory at {:#x}", piece.image->address + still.front() * kDeviceChunk),
              "does not have the hash that the image gives it");
}

Result<void> DeviceFill::fill(FilledAllocation& piece, bool searching) {
  trace::Span span("device fill");
  CKPT_TRY_ASSIGN(StagingRing * ring, this->ring(*piece.device));
  const std::string& uuid = piece.device->properties().uuid;
  std::vector<size_t> chunks;
  std::vector<StagingRing::Move> moves;
  std::vector<Address> cleared;
  for (size_t i = 0; i < piece.hashes->size(); ++i) {
    if (piece.made[i]) {
      cleared.push_back(piece.local(i));
      continue;
    }
    ++report_.chunks;
    const ChunkHash& hash = (*piece.hashes)[i];
    auto [where, fresh] = on_device_.try_emplace({uuid, key(hash)}, piece.local(i));
    if (fresh) {
      chunks.push_back(i);
      continue;
    }
    moves.push_back({piece.local(i), where->second});
    std::lock_guard lock(mutex_);
    if (auto known = leads_to_.find(key(hash)); known != leads_to_.end())
      piece.leads_to.insert(known->second.begin(), known->second.end());
  }
  CKPT_TRY(ring->clear(cleared, kDeviceChunk));
  CKPT_TRY(send(piece, chunks, searching));
  CKPT_TRY(ring->within_device(moves, kDeviceChunk));
  report_.within_device += moves.size();
  // Where a copy was made of memory that the process has changed since, the image's own bytes are sent.
  CKPT_TRY_ASSIGN(const std::vector<size_t> wrong, differing(piece));
  CKPT_TRY(put_right(piece, wrong, searching));
  for (size_t i : wrong) on_device_[{uuid, key((*piece.hashes)[i])}] = piece.local(i);
  piece.there = true;
  return {};
}

Result<void> DeviceFill::replay() {
  for (const store::DeviceLaunch& launch : memory_.launches) {
    CKPT_TRY(target_.replay({launch.sequence, {}, {}, true, {launch.record.begin(), launch.record.end()},
                             launch.name}));
    ++report_.replayed;
  }
  if (memory_.launches.empty()) return {};
  CKPT_TRY(target_.drain(options_.timeout_us));
  for (FilledAllocation& piece : pieces_) {
    // What launches wrote beside what is wanted is put right; what they should have made cannot be.
    std::vector<bool> made = std::exchange(piece.made, std::vector<bool>(piece.made.size()));
    CKPT_TRY_ASSIGN(const std::vector<size_t> wrong, differing(piece));
    for (size_t i : wrong) {
      if (!made[i]) continue;
      return fail(Code::kCorrupt, fmt::format("device memory at {:#x}", piece.image->address + i * kDeviceChunk),
                  "could not be computed again as it was");
    }
    CKPT_TRY(put_right(piece, wrong, false));
  }
  return {};
}

Result<FillReport> DeviceFill::eager() {
  for (FilledAllocation& piece : pieces_) CKPT_TRY(fill(piece, false));
  CKPT_TRY(replay());
  return report_;
}

}  // namespace ckpt::capture
