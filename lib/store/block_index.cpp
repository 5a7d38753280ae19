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
    const PagemapRecord& other = entries[slots[at] - 1].record;
    if (other.hash == record.hash && page_count(other.data_mask) == page_count(record.data_mask)) return &slots[at];
  }
}

void BlockIndex::Shard::grow() {
  std::vector<uint32_t> old(slots.empty() ? 64 : slots.size() * 2);
  old.swap(slots);
  for (uint32_t number : old) {
    if (number != 0) *find_slot(entries[number - 1].record) = number;
  }
}

BlockIndex::Added BlockIndex::add(const PagemapRecord& record, uint16_t iteration) {
  const bool has_data = record.data_mask != 0 && record.ancestor == 0;
  Shard& shard = shards_[(has_data ? record.hash.hi : record.address >> 16) % shards_.size()];
  std::lock_guard lock(shard.mutex);
  if (!has_data) {
    shard.entries.push_back({record, iteration});
    return {};
  }
  if (4 * (shard.chunks + 1) > 3 * shard.slots.size()) shard.grow();
  uint32_t* slot = shard.find_slot(record);
  shard.entries.push_back({record, iteration});
  PagemapRecord& added = shard.entries.back().record;
  if (*slot != 0) {
    added.codec = kRepeat;
    added.offset = *slot - 1;
    return {nullptr, true, shard.entries[*slot - 1].record.address};
  }
  *slot = static_cast<uint32_t>(shard.entries.size());
  ++shard.chunks;
  return {&added, false, 0};
}

/// The records of one block, the final ones first, then the iterations from the latest on, made a stack: each record's
/// parent mask is what those below it have to say. Rounds that nothing is left of are dropped.
Result<void> BlockIndex::settle(std::span<Entry> stack, uint16_t in_parent, std::vector<PagemapRecord>& out,
                                PrecopiedTotals& precopied) {
  uint16_t given = 0, open = 0;  // open: pages that are as they were
  std::vector<std::pair<PagemapRecord*, uint16_t>> kept;  // with the pages that each is there for
  for (Entry& entry : stack) {
    PagemapRecord& record = entry.record;
    uint16_t own = record.data_mask | record.zero_mask;
    if (entry.iteration == kFinal) {
      if ((given & record.all_pages()) != 0)
        return fail(Code::kBug, "",
                    fmt::format("a page of the block at {:#x} was added to the image twice", record.address));
      given |= record.all_pages();
      open |= record.parent_mask;
      kept.emplace_back(&record, own);
      continue;
    }
    own &= open;
    if (own == 0) continue;
    open &= static_cast<uint16_t>(~own);
    record.zero_mask &= own;
    precopied.data += page_count(record.data_mask & own), precopied.zero += page_count(record.zero_mask);
    kept.emplace_back(&record, own);
  }
  uint16_t below = open & in_parent;
  for (auto it = kept.rbegin(); it != kept.rend(); ++it) {
    it->first->parent_mask = below;
    below |= it->second;
  }
  // A final record without pages of its own is there to hide what the iterations have outdated: mostly nothing.
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto& [record, own] = kept[i];
    const bool hides = i + 1 < kept.size() && (kept[i + 1].first->data_mask & ~record->parent_mask) != 0;
    const bool leaves = i + 1 == kept.size() && record->parent_mask != 0;
    if (own != 0 || hides || leaves) out.push_back(*record);
  }
  return {};
}

Result<std::vector<PagemapRecord>> BlockIndex::take(const std::function<uint16_t(uint64_t)>& parent_pages,
                                                    PrecopiedTotals& precopied) {
  std::vector<Entry> all;
  size_t count = 0;
  for (const Shard& shard : shards_) count += shard.entries.size();
  all.reserve(count);
  for (Shard& shard : shards_) {
    for (const Entry& entry : shard.entries) {
      all.push_back(entry);
      PagemapRecord& record = all.back().record;
      if (record.codec != kRepeat) continue;
      const PagemapRecord& stored = shard.entries[record.offset].record;
      record.codec = stored.codec;
      record.file = stored.file;
      record.offset = stored.offset;
      record.length_less_one = stored.length_less_one;
      record.stored_check = stored.stored_check;
    }
    shard.entries = {};
    shard.slots = {};
    shard.chunks = 0;
  }
  auto order = [](const Entry& entry) {
    return std::make_tuple(entry.record.address, -int{entry.iteration}, std::countr_zero(entry.record.all_pages()));
  };
  std::sort(all.begin(), all.end(), [&](const Entry& a, const Entry& b) { return order(a) < order(b); });
  std::vector<PagemapRecord> out;
  out.reserve(count);
  for (size_t first = 0, end = 0; first < all.size(); first = end) {
    const uint64_t address = all[first].record.address;
    while (end < all.size() && all[end].record.address == address) ++end;
    CKPT_TRY(settle(std::span(all).subspan(first, end - first), parent_pages(address), out, precopied));
  }
  return out;
}

}  // namespace ckpt::store
