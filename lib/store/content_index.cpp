#include "lib/store/content_index.h"

#include <bit>

namespace ckpt::store {

namespace {
uint16_t tag_of(const Hash128& hash) { return static_cast<uint16_t>(hash.hi >> 48); }
bool stores_a_chunk(const PagemapRecord& r) { return r.data_mask != 0 && r.ancestor == 0; }
}  // namespace

ContentIndex::ContentIndex(const Chain& chain) : chain_(chain) {
  size_t chunks = 0;
  for (const LoadedImage& image : chain.images) {
    for (const PagemapRecord& r : image.records) chunks += stores_a_chunk(r) ? 1 : 0;
  }
  slots_.resize(std::bit_ceil(chunks + chunks / 3 + 1));
  for (size_t image = 0; image < chain.images.size(); ++image) {
    const std::vector<PagemapRecord>& records = chain.images[image].records;
    for (size_t i = 0; i < records.size(); ++i) {
      if (!stores_a_chunk(records[i])) continue;
      Slot& slot = slots_[place_of(records[i].hash, page_count(records[i].data_mask))];
      if (slot.record == kFree)
        slot = {static_cast<uint32_t>(i), static_cast<uint16_t>(image), tag_of(records[i].hash)};
    }
  }
}

size_t ContentIndex::place_of(const Hash128& hash, unsigned pages) const {
  for (size_t at = hash.lo & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.record == kFree) return at;
    if (slot.tag == tag_of(hash) && record(slot).hash == hash && page_count(record(slot).data_mask) == pages) return at;
  }
}

std::optional<ContentIndex::Found> ContentIndex::find(const Hash128& hash, unsigned pages) const {
  const Slot& slot = slots_[place_of(hash, pages)];
  if (slot.record == kFree) return std::nullopt;
  return Found{slot.image, &record(slot)};
}

}  // namespace ckpt::store
