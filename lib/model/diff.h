// Two checkpoints compared, tensor by tensor: formats, shards and files do not matter. Streamed, nothing holds a
// tensor.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/tensor/catalog.h"

namespace ckpt::model {

/// |a - b| <= absolute + relative * |b| counts as equal, and NaN as equal to NaN (numpy's isclose with equal_nan).
struct Tolerance {
  double absolute = 0, relative = 0;
};

struct DiffOptions {
  /// Nothing: elements are equal when their bits are.
  std::optional<Tolerance> tolerance;
  /// Which keys to compare; null: all.
  std::function<bool(std::string_view key)> wanted;
  unsigned threads = 0;  ///< 0: one per core
  ProgressSink* progress = &null_progress();
  const Cancel* cancel = nullptr;
  uint64_t max_memory =
      uint64_t{256} << 20;  ///< bytes, of the whole process: bounds how many shards are decoded at once
  bool skip_unreadable = false;               ///< what a reader could not hand out counts for nothing
};

/// A tensor that both hold, under one key. Its values are compared as numbers where the dtypes differ.
struct TensorDiff {
  const tensor::Tensor* a = nullptr;
  const tensor::Tensor* b = nullptr;
  bool same_shape = true, same_dtype = true;
  uint64_t elements = 0;          ///< compared: none where the shapes differ
  uint64_t different = 0;         ///< of those
  double max_abs = 0;             ///< greatest |a - b| of the different ones; NaN: a NaN stands against a number
  std::optional<uint64_t> first;  ///< row-major index of the first different one in the first shard that has any
  std::string unreadable;         ///< why its values were not compared
  bool equal() const { return same_shape && same_dtype && different == 0 && unreadable.empty(); }
};

struct CatalogDiff {
  std::vector<const tensor::Tensor*> only_a, only_b;
  std::vector<TensorDiff> both;  ///< sorted by key, equal ones included
  std::vector<tensor::Unreadable>
      unreadable;  ///< of either: nobody can say whether they are equal. In none of the other lists
  bool equal() const;
};

/// `keys` only: no byte is read.
CatalogDiff compare_keys(const tensor::Catalog& a, const tensor::Catalog& b, const DiffOptions& options);
/// Both from reads with locate_data (and tolerate_damage, if one likes). What is wrong with one tensor stays with it
/// (`unreadable`), and what a reader could not hand out is not equal; kInterrupted and failures of the system are
/// errors. Memory: about 1 MiB a thread, and decoded shards where they are encoded.
Result<CatalogDiff> compare_catalogs(const tensor::Catalog& a, const tensor::Catalog& b, const DiffOptions& options);

}  // namespace ckpt::model
