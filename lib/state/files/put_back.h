// Files whose content goes with an image (contents.h): restore.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/files/file_state.h"
#include "lib/state/reasons.h"
#include "lib/state/run_as.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Whether what an image says of such files makes sense: kCorrupt.
Result<void> validate_contents(const store::TreeImage& tree);

/// Files with a content have their places below `root`, an absolute folder, instead.
void move_contents(store::TreeImage& tree, const std::string& root);

/// The names under which a file was in use, the first with its content.
using ContentNames = std::vector<int>;
/// Indices into TreeImage::files, of all that have content.
std::vector<ContentNames> content_names(const store::TreeImage& tree);

/// Whether the content can be put back under these names, as far as that can be told without opening anything: what
/// is there is a regular file, one under all of the names that are there, and, without `force`, not newer.
void check_content(const store::TreeImage& tree, const ContentNames& names, bool force, Reasons& reasons);

/// The file to put it back into, for writing, or, where that is not permitted, for reading; under names that are
/// missing it is made, with the folders that are. All of it with these rights, through no link; only what is still the
/// very file that the processes had open for writing, with its owner and mode, needs none (`written`).
Result<UniqueFd> open_content(const store::TreeImage& tree, const ContentNames& names, bool written,
                              const Rights& rights, ProgressSink& progress);

/// What could be opened for reading alone has what the image has of it: kPermission. Once that is loaded, and before
/// anything is made.
Result<void> check_unwritable(const store::ImageReader& image, const std::map<int, UniqueFd>& files,
                              const Cancel& cancel);

/// As it was.
Result<void> set_time_of_change(int fd, const store::FileIdentity& file);

/// Each file has the content, size and time of change of the image; one that has them already is not touched. By index
/// of the first name. How many were changed; an error has a hint that says so of the file and of those before it, which
/// stay as they are then.
Result<size_t> put_back(const store::ImageReader& image, const std::map<int, UniqueFd>& files, ProgressSink& progress,
                        const Cancel& cancel);

}  // namespace ckpt::restore
