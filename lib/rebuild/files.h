// The files of an image: opened again, and compared with what they were.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "lib/base/progress.h"
#include "lib/rebuild/inherited.h"
#include "lib/rebuild/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::rebuild {

/// Numbers of inherited descriptors.
struct OpenedFiles {
  std::map<std::pair<int, bool>, int> mapped;  ///< (index of the file, opened for writing too)
  std::map<int, int> descriptors;              ///< index into ProcessImage::descriptors: kFile and kDevice
  std::map<uint64_t, int> shared_objects;      ///< see shared_memory.h
  int exe = -1, cwd = -1, root = -1;
};

/// A file that the process only reads must be what it was: missing is kNotFound, changed kAnswerNo. One that the
/// process itself was writing may have grown, which is noted; shorter than the recorded offset is a reason against.
OpenedFiles open_files(const store::ProcessImage& image, Inherited& inherited, Reasons& reasons,
                       ProgressSink& progress);

/// Whether a shared mapping was made from a file opened for writing.
bool maps_for_writing(const store::MemoryMap& map);

}  // namespace ckpt::rebuild
