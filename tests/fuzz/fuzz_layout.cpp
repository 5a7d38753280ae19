// Layouts of --plan and slices of cat; the first byte is how much of the input is the slice.
#include <cstdlib>

#include "lib/model/rank_plan.h"
#include "lib/model/slice.h"

using namespace ckpt::tensor;
using namespace ckpt::model;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view slice = text.substr(0, data[0] & 31);
  text.remove_prefix(slice.size());
  Tensor t;
  t.key = "a.b";
  t.shape = {6, 4, 5};
  Shard shard;
  shard.offset = {0, 0, 0};
  shard.shape = t.shape;
  shard.where.length = t.bytes();
  t.shards = {shard};
  auto inside = [&](const Region& region) {
    for (size_t i = 0; i < t.shape.size(); ++i) {
      if (region.offset[i] > t.shape[i] || region.shape[i] > t.shape[i] - region.offset[i]) std::abort();
    }
  };
  if (auto cut = parse_slice(slice, t.shape)) inside(cut->region);
  auto layout = parse_layout(text);
  if (!layout) return 0;
  const LayoutRule* rule = layout->rule(t.key);
  if (rule == nullptr) return 0;
  for (uint64_t rank = 0; rank < std::min<uint64_t>(layout->ranks(), 64); ++rank) {
    auto boxes = boxes_of_rank(*layout, *rule, rank, t);
    if (!boxes) return 0;
    for (const Region& box : *boxes) {
      inside(box);
      for (const StridedRead& read : reads_of(t, box)) {
        if (read.range.offset + read.range.length > t.bytes()) std::abort();
      }
    }
  }
  return 0;
}
