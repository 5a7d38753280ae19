#include "lib/remote/part_sizes.h"

#include <algorithm>

#include "lib/remote/backend.h"

namespace ckpt::remote {

namespace {

constexpr unsigned kMost = WritableBackend::kMostParts;

/// Parts of an object whose size is not known: the first thousand of 8 MiB, the next of 16, all others of 32.
struct PartRange {
  unsigned first;
  uint64_t begin, part;
};
constexpr unsigned kSteps = 1000;
constexpr PartRange kGrowing[] = {
    {0, 0, PartSizes::kPart},
    {kSteps, kSteps* PartSizes::kPart, 2 * PartSizes::kPart},
    {2 * kSteps, 3 * kSteps* PartSizes::kPart, PartSizes::kLargest},
};

Error too_large() {
  return Error(Code::kNoRoom, "", "is too large for one object: its parts would not fit into memory")
      .with_hint("--files and --file-size make more files of it");
}

}  // namespace

Result<PartSizes> PartSizes::of(std::optional<uint64_t> total) {
  constexpr uint64_t kStep = 1 << 20;
  PartSizes out;
  out.total_ = total;
  const uint64_t least = total ? (*total + kMost - 1) / kMost : 0;
  if (least > kLargest) return too_large();
  if (least > kPart) out.part_ = (least + kStep - 1) / kStep * kStep;
  return out;
}

Result<unsigned> PartSizes::part_at(uint64_t offset) const {
  if (total_) return static_cast<unsigned>(offset / part_);
  const PartRange* in = std::end(kGrowing) - 1;
  while (in->begin > offset) --in;
  const uint64_t part = in->first + (offset - in->begin) / in->part;
  if (part >= kMost) return too_large();
  return static_cast<unsigned>(part);
}

uint64_t PartSizes::begin(unsigned part) const {
  if (total_) return std::min(*total_, part * part_);
  const PartRange* in = std::end(kGrowing) - 1;
  while (in->first > part) --in;
  return in->begin + (part - in->first) * in->part;
}

uint64_t PartSizes::end(unsigned part) const { return begin(part + 1); }

}  // namespace ckpt::remote
