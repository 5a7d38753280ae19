// The inner loops of `stats_of`.
#pragma once

#include "lib/model/stats.h"

namespace ckpt::model {

/// What one pass over a block gives. Sums are of `x - shift`, which keeps their squares small where values lie close
/// together.
struct BlockSums {
  double sum = 0, squares = 0;
  double min = 0, max = 0;
  uint64_t zeros = 0;
  /// False: the block holds a NaN or an infinity (or values whose squares overflow), and only `Stats` of single
  /// elements count.
  bool usable = false;
};

constexpr size_t kBlockElements = 2048;

/// `elements`: at most kBlockElements whole ones, of a dtype of more than one byte.
BlockSums scan_block(tensor::DType dtype, ByteSpan elements, double shift);

}  // namespace ckpt::model
