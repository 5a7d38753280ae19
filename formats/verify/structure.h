// What can be said of a checkpoint without reading its tensors.
#pragma once

#include <functional>

#include "lib/tensor/read.h"

namespace ckpt::formats {

/// ShardedObjects with places missing, items of .distcp files with bytes between them that nothing refers to, parameters
/// without their optimizer state and the reverse. `note` takes the findings; those marked as warnings are odd, the others are damage.
void check_structure(const tensor::Catalog& catalog, tensor::FileCache& files, const std::function<void(tensor::Finding)>& note);

}  // namespace ckpt::formats
