// Another description for the pages and contents of an image, in one reader alone.
#pragma once

#include "lib/store/image.h"

namespace ckpt::store {

/// Before `manifest()` of the reader is asked for by anybody who keeps it. The files on disk stay as they are.
void describe_anew(ImageReader& image, TreeImage tree);

}  // namespace ckpt::store
