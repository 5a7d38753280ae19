// The names of a checkpoint as a tree, cut at dots, with sizes rolled up.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/tensor/catalog.h"

namespace ckpt::model {

/// One name or part of it. The root has the index 0 and an empty name; in breadth-first order: children come after
/// their parent.
struct NameNode {
  std::string name;                ///< "layers", or "decoder.layers" where nothing else begins with "decoder."
  uint32_t parent = 0, depth = 0;  ///< the root's depth is 0
  uint64_t bytes = 0, elements = 0, tensors = 0;
  uint64_t dtypes = 0;             ///< bit n: DType n occurs
  const tensor::Tensor* tensor = nullptr;  ///< what has exactly this name
  std::vector<uint32_t> children;  ///< by name, numbers by value
};

/// Parts that have one child only are joined with it. Linear in the length of the names but for the sorting.
std::vector<NameNode> name_tree(std::span<const tensor::Tensor* const> tensors);

/// `layers.2.w` before `layers.10.w`.
bool natural_less(std::string_view a, std::string_view b);

/// "bfloat16, float32" of NameNode::dtypes.
std::string dtype_list(uint64_t dtypes);

}  // namespace ckpt::model
