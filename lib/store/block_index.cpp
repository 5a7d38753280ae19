#include "lib/store/block_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace ckpt::store {

namespace {
/// Shards go by the high half of the hash, slots by the low half.
size_t slot_of(const Hash128& hash, size_t slots) { return hash.lo & (slots - 1); }
}  // namespace

uint32_t* BlockIndex::Shard::find_slot(const PagemapRecord& record) {
  for (size_t at = slot_of(record.hash, slots.size());; at = (at + 1) & (slots.size() - 1)) {
    if (slots[at] == 0) return &slots[at];
    const PagemapRecord& other = records[slots[at] - 1];
    if (other.hash == record.hash && page_count(other.data_mask) == page_count(record.data_mask)) return &slots[at];
  }
}

void BlockIndex::Shard::grow() {
  std::vector<uint32_t> old(slots.empty() ? 64 : slots.size() * 2);
  old.swap(slots);
  for (uint32_t number : old) {
    if (number != 0) *find_slot(records[number - 1]) = number;
  }
}

BlockIndex::Added BlockIndex::add(const PagemapRecord& record) {
  const bool has_data = record.data_mask != 0 && record.ancestor == 0;
  Shard& shard = shards_[(has_data ? record.hash.hi : record.address >> 16) % shards_.size()];
  std::lock_guard lock(shard.mutex);
  if (!has_data) {
    shard.records.push_back(record);
    return {};
  }
  if (4 * (shard.chunks + 1) > 3 * shard.slots.size()) shard.grow();
  uint32_t* slot = shard.find_slot(record);
  shard.records.push_back(record);
  PagemapRecord& added = shard.records.back();
  if (*slot != 0) {
    added.codec = kRepeat;
    added.offset = *slot - 1;
    return {nullptr, true, shard.records[*slot - 1].address};
  }
  *slot = static_cast<uint32_t>(shard.records.size());
  ++shard.chunks;
  return {&added, false, 0};
}

Result<std::vector<PagemapRecord>> BlockIndex::take() {
  std::vector<PagemapRecord> out;
  size_t count = 0;
  for (const Shard& shard : shards_) count += shard.records.size();
  out.reserve(count);
  for (Shard& shard : shards_) {
    for (PagemapRecord& record : shard.records) {
      out.push_back(record);
      if (record.codec != kRepeat) continue;
      const PagemapRecord& stored = shard.records[record.offset];
      out.back().codec = stored.codec;
      out.back().file = stored.file;
      out.back().offset = stored.offset;
      out.back().length_less_one = stored.length_less_one;
      out.back().stored_check = stored.stored_check;
    }
    shard.records = {};
    shard.slots = {};
    shard.chunks = 0;
  }
  std::sort(out.begin(), out.end(), [](const PagemapRecord& a, const PagemapRecord& b) {
    return std::make_tuple(a.address, std::countr_zero(a.all_pages())) < std::make_tuple(b.address, std::countr_zero(b.all_pages()));
  });
  uint16_t here = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (i == 0 || out[i].address != out[i - 1].address) here = 0;
    if ((here & out[i].all_pages()) != 0) {
      return fail(Code::kBug, "", fmt::format("a page of the block at {:#x} was added to the image twice", out[i].address));
    }
    here |= out[i].all_pages();
  }
  return out;
}

}  // namespace ckpt::store
