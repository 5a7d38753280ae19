// Every byte of one image compared with the hashes.
#pragma once

#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/store/image_files.h"

namespace ckpt::store {

/// Damage goes to `findings`; an error is what kept from looking (a disk that cannot be read, an interrupt).
Result<void> verify_files(const LoadedImage& image, ProgressSink& progress, const Cancel& cancel,
                          std::vector<ImageReader::Finding>& findings);

}  // namespace ckpt::store
