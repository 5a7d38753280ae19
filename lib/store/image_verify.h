// Every byte of one image compared with the hashes, its own and those that its descendants have of it.
#pragma once

#include <deque>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/store/image_files.h"

namespace ckpt::store {

/// The image `index` of a chain, the newest being the first. Damage goes to `findings`; an error is what kept from
/// looking (a disk that cannot be read, an interrupt).
Result<void> verify_files(const std::deque<LoadedImage>& chain, size_t index, ProgressSink& progress,
                          const Cancel& cancel, std::vector<ImageReader::Finding>& findings);

}  // namespace ckpt::store
