#include "lib/repository/index.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace ckpt::repository {

namespace {

constexpr size_t kSmallest = 1024;

bool is_full(size_t used, size_t slots) { return (used + 1) * 3 > slots * 2; }

/// Odd numbers that nobody knows beforehand.
std::array<uint64_t, 4> make_secret() {
  std::array<uint64_t, 4> out = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0xd6e8feb86659fd93};
  (void)::getrandom(out.data(), sizeof out, GRND_NONBLOCK);
  for (uint64_t& one : out) one |= 1;
  return out;
}

}  // namespace

uint64_t mix(const Id& id) {
  static const std::array<uint64_t, 4> kSecret = make_secret();
  uint64_t words[4];
  std::memcpy(words, id.bytes.data(), sizeof words);
  uint64_t out = 0;
  for (size_t i = 0; i < 4; ++i) {
    out = (out ^ words[i]) * kSecret[i];
    out ^= out >> 29;
  }
  return out;
}

void Index::grow(size_t chunks) {
  if (!slots_.empty() && !is_full(used_ + chunks, slots_.size())) return;
  slots_.assign(std::bit_ceil(std::max(kSmallest, (used_ + chunks) * 2)), {});
  mask_ = slots_.size() - 1;
  used_ = 0;
  for (uint32_t pack = 0; pack < packs_.size(); ++pack) {
    for (uint32_t chunk = 0; chunk < packs_[pack].table.ids.size(); ++chunk) insert(pack, chunk);
  }
}

void Index::insert(uint32_t pack, uint32_t chunk) {
  const Id& id = packs_[pack].table.ids[chunk];
  size_t at = mix(id) & mask_, copies = 0;
  for (; slots_[at].pack != 0; at = (at + 1) & mask_) {
    if (id_of({slots_[at].pack - 1, slots_[at].chunk}) == id && ++copies == kMostCopies) return;
  }
  slots_[at] = {pack + 1, chunk};
  ++used_;
}

uint32_t Index::add(KnownPack pack) {
  grow(pack.table.ids.size());
  const auto number = static_cast<uint32_t>(packs_.size());
  numbers_.emplace(pack.name, number);
  packs_.push_back(std::move(pack));
  for (uint32_t chunk = 0; chunk < packs_.back().table.ids.size(); ++chunk) insert(number, chunk);
  return number;
}

std::optional<uint32_t> Index::find_pack(const std::string& name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<ChunkPlace> Index::find(const Id& id, const std::function<bool(const KnownPack&)>& good) const {
  std::optional<ChunkPlace> out;
  find_all(id, [&](const ChunkPlace& place) {
    if (good && !good(packs_[place.pack])) return true;
    out = place;
    return false;
  });
  return out;
}

size_t IdSet::place(const std::vector<Id>& slots, const Id& id) {
  size_t at = (mix(id) >> 6) & (slots.size() - 1);
  while (!slots[at].empty() && slots[at] != id) at = (at + 1) & (slots.size() - 1);
  return at;
}

bool IdSet::insert(const Id& id) {
  Shard& shard = shards_[mix(id) % kShards];
  std::lock_guard lock(shard.mutex);
  if (is_full(shard.used, shard.slots.size())) {
    std::vector<Id> larger(std::bit_ceil(std::max<size_t>(64, shard.slots.size() * 2)));
    for (const Id& one : shard.slots) {
      if (!one.empty()) larger[place(larger, one)] = one;
    }
    shard.slots = std::move(larger);
  }
  const size_t at = place(shard.slots, id);
  if (!shard.slots[at].empty()) return false;
  shard.slots[at] = id;
  ++shard.used;
  return true;
}

bool IdSet::contains(const Id& id) const {
  const Shard& shard = shards_[mix(id) % kShards];
  std::lock_guard lock(shard.mutex);
  return !shard.slots.empty() && shard.slots[place(shard.slots, id)] == id;
}

size_t IdSet::size() const {
  size_t sum = 0;
  for (const Shard& shard : shards_) sum += shard.used;
  return sum;
}

}  // namespace ckpt::repository
