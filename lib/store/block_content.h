// What tells that two blocks of an image hold the same bytes, without reading them.
#pragma once

#include "lib/base/digest.h"
#include "lib/store/image.h"

namespace ckpt::store {

/// Blocks with equal contents and equal masks hold the same pages; the reverse need not be so. Of a block with data,
/// once the pages are loaded (ImageReader::load_pages).
Hash128 content_of(const ImageReader& image, size_t block);

}  // namespace ckpt::store
