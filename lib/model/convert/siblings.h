// What lies in a checkpoint's folder beside it and belongs to no reader: a trainer's own state, configurations,
// tokenizers.
#pragma once

#include <string>
#include <vector>

#include "lib/tensor/catalog.h"
#include "lib/tensor/layout.h"

namespace ckpt::model {

/// Names of files and folders (these with a slash behind) at the top of the checkpoint's folder that are no part of it,
/// sorted.
std::vector<std::string> find_siblings(const tensor::Catalog& catalog);

/// Adds those that are files to what is written, except where the layout has one of the name. Returns the names that it
/// left out.
std::vector<std::string> copy_siblings(const tensor::Catalog& catalog, const std::vector<std::string>& names,
                                       tensor::Layout& layout);

}  // namespace ckpt::model
