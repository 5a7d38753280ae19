// Statistics of tensors, streamed: every byte is read once, nothing holds a whole tensor.
#pragma once

#include <span>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/tensor/catalog.h"

namespace ckpt::model {

/// Of the elements of a tensor; of complex ones, of their magnitudes. Least, greatest, mean and deviation leave out
/// what is not finite.
struct Stats {
  uint64_t elements = 0, nans = 0, infs = 0, zeros = 0;
  long double min = 0,
              max = 0;  ///< x86's: exact for every dtype, 64-bit integers included. Both 0 where nothing is finite
  double mean = 0;
  double m2 = 0;                 ///< sum of the squares of the distances from the mean

  uint64_t finite() const { return elements - nans - infs; }
  /// Of the population (numpy's default).
  double deviation() const;
  /// As if `other`'s elements had come after these.
  void merge(const Stats& other);
  /// As if every element had come `times` times.
  void repeat(uint64_t times);
};

/// Of little-endian elements in memory.
Stats stats_of(tensor::DType dtype, ByteSpan elements);

struct StatsOptions {
  unsigned threads = 0;  ///< 0: one per core
  ProgressSink* progress = &null_progress();
  const Cancel* cancel = nullptr;
  uint64_t max_memory =
      uint64_t{256} << 20;  ///< bytes, of the whole process: bounds how many shards are decoded at once
};

/// One entry per tensor, in their order; the same for any number of threads. The catalog comes from a read with
/// locate_data, the tensors are its own. Memory: a few hundred KiB a thread, and one decoded shard a thread where
/// shards are encoded (kNoRoom: one alone takes more than max_memory).
Result<std::vector<Stats>> compute_stats(const tensor::Catalog& catalog, std::span<const tensor::Tensor* const> tensors,
                                         const StatsOptions& options);

}  // namespace ckpt::model
