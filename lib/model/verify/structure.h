// What can be said of a checkpoint without reading its tensors.
#pragma once

#include <functional>

#include "lib/tensor/read.h"

namespace ckpt::model {

using Note = std::function<void(tensor::Finding)>;

/// ShardedObjects with places missing, of those that are `wanted` (null: all): damage.
void check_object_grids(const tensor::Catalog& catalog, const std::function<bool(std::string_view key)>& wanted,
                        const Note& note);

/// Items of .distcp files with bytes between them that nothing refers to: warnings.
void check_item_gaps(const tensor::Catalog& catalog, tensor::FileCache& files, const Note& note);

}  // namespace ckpt::model
