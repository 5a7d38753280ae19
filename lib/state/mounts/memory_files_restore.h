// The files of a file system in memory, made again.
#pragma once

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/state/mounts/record.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Everything but the bytes of regular files, which have their size. `root`: an empty file system that nobody else
/// sees.
Result<void> make_memory_files(const std::vector<store::MemoryFile>& files, int root);

/// The bytes, in each file system that this process has made (made.h); those that were read-only become so.
Result<void> fill_memory_files(const store::ImageReader& image, ProgressSink& progress, const Cancel& cancel);

}  // namespace ckpt::restore
