// Which of the work is done here and now: a part for each of several machines, a sample.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ckpt::model {

struct Selection {
  uint64_t part = 1, parts = 1;
  std::optional<double> percent;   ///< of the units, each drawn by itself
  std::optional<uint64_t> count;   ///< so many units
  uint64_t seed = 0;
};

/// Indices into `sizes` (bytes of each unit of work), ascending. The sample is drawn first and the same for all parts;
/// the parts are runs of about equal size, disjoint, and together the sample.
std::vector<size_t> select_units(const std::vector<uint64_t>& sizes, const Selection& selection);

}  // namespace ckpt::model
