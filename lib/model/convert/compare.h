// Whether what was written is what was to be written: read again, by the readers.
#pragma once

#include <filesystem>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/tensor/selection.h"

namespace ckpt::model {

/// Opens `written` and compares every tensor of the selection with it, bit for bit, and the names of its objects.
/// kCorrupt: what differs, with the key and the first element.
Result<void> compare_with_source(const std::filesystem::path& written, const tensor::Selection& selection,
                                 unsigned workers, ProgressSink& progress, const Cancel& cancel);

}  // namespace ckpt::model
