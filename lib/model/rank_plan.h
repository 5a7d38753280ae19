// What each rank of a layout would read of a checkpoint: which boxes of which tensors, and where their bytes lie. The
// layout need not be the one that the checkpoint was written with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/tensor/read.h"

namespace ckpt::model {

/// A dimension of the world, and how many ranks lie along it.
struct Dimension {
  std::string name;
  uint64_t size = 1;
};

/// One triple of Megatron's from_rank_offsets: the axis is cut into `fragments` equal parts, and a rank has the one at
/// its coordinate along `dimension`, or at `offset` where that is fixed.
struct Cut {
  int64_t axis = 0;                 ///< negative ones from the end
  std::optional<size_t> dimension;  ///< index into RankLayout::world
  uint64_t offset = 0;
  uint64_t fragments = 1;
};

struct LayoutRule {
  std::string glob;
  bool skip = false;              ///< nobody reads it
  bool uneven = false;  ///< parts of ceil(n / fragments), the last ones shorter or empty (torch.chunk); else refused
  std::vector<Cut> cuts;
  std::optional<size_t>
      flatten;  ///< the cell that the cuts leave is flattened, row-major, and split along this dimension
};

struct RankLayout {
  std::vector<Dimension> world;   ///< the first one varies fastest from rank to rank
  std::vector<LayoutRule> rules;  ///< the first whose glob matches counts
  uint64_t ranks() const;
  uint64_t coordinate(uint64_t rank, size_t dimension) const;
  /// Null: no rule speaks of the key.
  const LayoutRule* rule(std::string_view key) const;
};

/// JSON, as ckpt(1) describes it. kUsage: what is wrong, and where.
Result<RankLayout> parse_layout(std::string_view json);

/// What a rank has of a tensor: boxes one after another in the row-major order of the cell (one, but for flattened
/// cells). Empty: nothing. kUsage: the rule does not fit the shape.
Result<std::vector<tensor::Region>> boxes_of_rank(const RankLayout& layout, const LayoutRule& rule, uint64_t rank,
                                                  const tensor::Tensor& tensor);

/// Equal runs of bytes in a file: `range`, again at every combination of the steps.
struct StridedRead {
  tensor::FileRange range;
  struct Repeat {
    uint64_t count, stride;        ///< stride in bytes
  };
  std::vector<Repeat> repeat;      ///< outermost first; empty: one run
  bool whole = false;  ///< an encoded shard, or one whose bytes were not located: its record has to be read whole
  uint64_t bytes() const;
};

/// Where a box's bytes lie, shard by shard. The tensor is one that `check_readable` has passed.
std::vector<StridedRead> reads_of(const tensor::Tensor& tensor, const tensor::Region& region);

}  // namespace ckpt::model
