#include "lib/store/job_common.h"

#include "lib/store/image.h"
#include "lib/store/image_files.h"

namespace ckpt::store {

void CommonCounter::thin_out() {
  while (seen_.size() > most_) {
    drawn_ = drawn_ << 1 | 1;
    std::erase_if(seen_, [&](const auto& one) { return (one.first & drawn_) != 0; });
  }
}

void CommonCounter::add(uint64_t hash, uint64_t bytes) {
  if ((hash & drawn_) != 0) return;
  const auto rank = static_cast<uint32_t>(out_.parts);
  Seen& seen = seen_[hash];
  if (seen.last_rank == rank) return;
  seen.last_rank = rank, seen.bytes = bytes, ++seen.ranks;
  if (seen_.size() > most_) thin_out();
}

CommonMemory CommonCounter::total() const {
  CommonMemory out = out_;
  for (const auto& [hash, seen] : seen_) {
    out.bytes += seen.ranks * seen.bytes;
    out.common += (seen.ranks - 1) * seen.bytes;
  }
  // Of every 2, 4, .. hashes one was kept.
  out.bytes *= drawn_ + 1, out.common *= drawn_ + 1, out.estimated = drawn_ != 0;
  return out;
}

Result<CommonMemory> common_memory(const std::vector<std::filesystem::path>& parts, const Cancel& cancel) {
  CommonCounter counter;
  for (const std::filesystem::path& part : parts) {
    CKPT_TRY(cancel.check());
    CKPT_TRY_ASSIGN(const LoadedImage image, load_image(part));
    counter.begin_rank();
    for (const PagemapRecord& record : image.records) {
      if (record.data_mask == 0) continue;
      counter.add(record.hash.lo, static_cast<uint64_t>(__builtin_popcount(record.data_mask)) * kPageSize);
    }
  }
  return counter.total();
}

}  // namespace ckpt::store
