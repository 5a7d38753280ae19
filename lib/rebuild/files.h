// The files of an image: opened again, and compared with what they were.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "lib/base/progress.h"
#include "lib/rebuild/inherited.h"
#include "lib/rebuild/reasons.h"
#include "lib/rebuild/shared_memory.h"
#include "lib/store/process_image.h"

namespace ckpt::rebuild {

/// Numbers of inherited descriptors.
struct OpenedFiles {
  std::map<std::pair<int, bool>, int> mapped;  ///< (index of the file, opened for writing too)
  std::map<int, int> descriptors;              ///< index into TreeImage::descriptors: kFile and kDevice
  std::map<int, int> executables, folders;     ///< by index of the file
  std::map<int, int> fifos;                    ///< both ends of a named pipe, by index into TreeImage::pipes
  std::map<int, UniqueFd> ghosts;              ///< deleted files, made again, by index: for reading and writing
  std::vector<SharedMemoryFds> shared_memory;  ///< parallel to TreeImage::shared_memory
};

/// A file that the processes only read must be what it was: missing is kNotFound, changed kAnswerNo. One that they were
/// writing themselves may have grown, which is noted; shorter than the recorded offset is a reason against. Deleted ones
/// are made where they were and unlinked at once; their content is `fill_ghosts`'.
OpenedFiles open_files(const store::TreeImage& tree, Inherited& inherited, Reasons& reasons, ProgressSink& progress);

/// The bytes and the time of last change of deleted files.
Result<void> fill_ghosts(const store::ImageReader& image, const OpenedFiles& files, ProgressSink& progress,
                         const Cancel& cancel);

/// Whether a shared mapping was made from a file opened for writing.
bool maps_for_writing(const store::MemoryMap& map);

}  // namespace ckpt::rebuild
