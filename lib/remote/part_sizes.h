// How an object is cut into the parts of an upload: so that 10,000 of them suffice.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/base/result.h"

namespace ckpt::remote {

/// Where the size is known, all parts but the last have one size; else they grow with the object.
class PartSizes {
 public:
  static constexpr uint64_t kPart = 8 << 20;
  static constexpr uint64_t kLargest = 32 << 20;  ///< several are in memory at once

  /// kNoRoom: an object of this size would need larger parts than kLargest.
  static Result<PartSizes> of(std::optional<uint64_t> total);

  /// Parts count from 0 here. kNoRoom: the object, whose size was not known, grew beyond all bounds.
  Result<unsigned> part_at(uint64_t offset) const;
  uint64_t begin(unsigned part) const;
  /// Of the object's last byte at the latest.
  uint64_t end(unsigned part) const;
  std::optional<uint64_t> total() const { return total_; }

 private:
  std::optional<uint64_t> total_;
  uint64_t part_ = kPart;  ///< where the total is known
};

}  // namespace ckpt::remote
