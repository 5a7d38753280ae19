// What the user wants of a checkpoint, turned into a Selection.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/tensor/selection.h"

namespace ckpt::model {

/// Keys are matched as they are in the source; the first rule of a kind that matches counts.
struct SelectRequest {
  std::vector<std::string> include, exclude;                  ///< globs; no include: all
  bool tensors_only = false;                                  ///< neither objects nor the common state
  bool no_optimizer = false;                                  ///< no optimizer state
  std::vector<std::string> renames;  ///< "REGEX=REPLACEMENT" (RE2, \1 for a group), each applied to all keys in turn
  std::string map;                   ///< a JSON object, old key to new; before the renames. Empty: none
  std::vector<std::pair<std::string, tensor::DType>> dtypes;  ///< glob, type
  std::vector<std::string> shapes;                            ///< "GLOB=AxB", "_" for a length that stays
  bool unflatten = false;                                     ///< refuse optimizer tensors that are flattened still
  bool allow_shape_mismatch = false;  ///< without it a shape that differs from the source's is refused
  bool skip_unreadable = false;                               ///< leave out what cannot be read, with a note of each
};

/// Whether a key is to be written, by include, exclude and no_optimizer.
bool is_wanted(const SelectRequest& request, const std::string& key);

/// "GLOB=float16". kUsage: anything else.
Result<std::pair<std::string, tensor::DType>> parse_dtype_rule(const std::string& text);

struct Selected {
  tensor::Selection selection;
  uint64_t excluded = 0;  ///< keys left out
  std::vector<tensor::Unreadable> skipped;  ///< of those, what could not be read
};

/// `catalog` must outlive the selection. kUsage: a rule that cannot be read or fits nothing, no tensor left of those
/// that there are, keys that would collide (each pair is a cause), a type that would lose values, a shape without
/// leave. kUnsupported: entries that cannot be read, each named, and not left out by a rule.
Result<Selected> select(const tensor::Catalog& catalog, const SelectRequest& request);

}  // namespace ckpt::model
