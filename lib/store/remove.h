// Images taken off the disk.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"

namespace ckpt::store {

struct RemoveOptions {
  bool force = false;    ///< also what another image needs
  bool chain = false;    ///< the parents of each image, too
  bool dry_run = false;
};

struct RemovedImage {
  std::filesystem::path dir;
  std::string id;         ///< empty: the manifest cannot be read
  uint64_t bytes = 0;
  bool folder_left = false;  ///< other files are in it, or it is a mount point
};

/// Removes the images in `dirs`, children before their parents; only an image's own files go, links are not followed.
/// The manifest goes first, so that a half-removed image never passes for one, and removing it once more takes the
/// rest. Nothing is touched where one of `dirs` is no image (kNotFound), a symbolic link or the parent of an image that
/// is not among them (kUsage, names that one), or a dump is about to refer to it (kBusy). Children are looked for below
/// the folder that holds an image, and where its links lead.
Result<std::vector<RemovedImage>> remove_images(const std::vector<std::filesystem::path>& dirs,
                                                const RemoveOptions& options, ProgressSink& notes,
                                                const Cancel& cancel);

struct RemovedStaging {
  std::filesystem::path dir;
  uint64_t bytes = 0;
};

/// Removes the staging folders in `folders` that killed runs have left (StagedDir); those of runs at work stay.
Result<std::vector<RemovedStaging>> remove_staging(const std::vector<std::filesystem::path>& folders, bool dry_run);

}  // namespace ckpt::store
