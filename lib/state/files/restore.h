// The files of an image: opened again, and compared with what they were.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "lib/base/progress.h"
#include "lib/state/descriptors/inherited.h"
#include "lib/state/reasons.h"
#include "lib/state/shared_memory/restore.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Numbers of inherited descriptors.
struct OpenedFiles {
  std::map<std::pair<int, bool>, int> mapped;  ///< (index of the file, opened for writing too)
  std::map<int, int> descriptors;              ///< index into TreeImage::descriptors: kFile and kDevice
  std::map<int, int> executables, folders;     ///< by index of the file
  std::map<int, int> fifos;                    ///< both ends of a named pipe, by index into TreeImage::pipes
  std::map<int, UniqueFd> ghosts;              ///< deleted files, made again, by index: for reading and writing
  std::map<int, UniqueFd> contents;            ///< those whose content the image has, by index of the first name
  std::vector<SharedMemoryFds> shared_memory;  ///< parallel to TreeImage::shared_memory
  std::vector<int> io_urings;                  ///< parallel to TreeImage::io_urings
  int empty = -1;                              ///< reads as nothing, where there are AIO contexts
};

/// Whether deleted files could be made again, without doing so.
void check_places(const store::TreeImage& tree, Reasons& reasons);
/// Whether the others are what they were, as `open_files` wants it.
void check_files(const store::TreeImage& tree, Reasons& reasons, ProgressSink& progress);

struct FileOptions {
  /// Paths and patterns (fnmatch) of files that may be others than they were.
  std::vector<std::string> allow_changed;
  /// Nothing is made in a file system: what was deleted is left out.
  bool dry_run = false;
  /// The content that the image has of a file is put back over a newer one, too.
  bool force = false;
};

/// Opens what the processes had open, mapped, executed or as a folder, without following a symbolic link.
///
/// How far a file may have changed: one that was open for writing must be the same file, and reach to the offset; one
/// that was mapped, be as it was; one that was read, be as it was or be the same file, no shorter. Missing is
/// kNotFound, changed kMismatch, tolerated is noted. Whose rights count: what is the same file, with the owner and mode
/// that it had, is given back as the processes had it, whatever rights they had given up since; another file must be
/// one that every process that gets it may open itself. Deleted ones are made again (see ghosts.h); their content is
/// `fill_ghosts`'. Of those whose content the image has nothing is compared: see put_back.h.
OpenedFiles open_files(const store::TreeImage& tree, const FileOptions& options, Inherited& inherited, Reasons& reasons,
                       ProgressSink& progress);

/// The bytes and the time of last change of deleted files.
Result<void> fill_ghosts(const store::ImageReader& image, const OpenedFiles& files, ProgressSink& progress,
                         const Cancel& cancel);

/// Whether a shared mapping was made from a file opened for writing.
bool maps_for_writing(const store::MemoryMap& map);

}  // namespace ckpt::restore
