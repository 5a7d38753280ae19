// Whether an image's description makes sense in itself. A manifest comes from a file: nothing in it is believed before
// this.
#pragma once

#include "lib/base/result.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Pure. kCorrupt naming the first contradiction: an index out of range, mappings that overlap or lie outside of user
/// space, a descriptor number twice, pages that belong to no mapping.
Result<void> validate(const store::TreeImage& tree);
Result<void> validate_pages(const store::TreeImage& tree, const std::vector<store::ImageReader::ResolvedBlock>& blocks);

}  // namespace ckpt::restore
