// Deleted files made again: nobody can reach them by name before, during or after, but their own user.
#pragma once

#include <string>
#include <vector>

#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/run_as.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

struct Ghost {
  /// Of the file itself, which has no name any more: readable and writable where it is regular or a fifo.
  UniqueFd file;
  /// Parallel to the further names that were asked for: a descriptor that shows it. Empty where it could not be had.
  std::vector<UniqueFd> other_names;
  /// Parallel to `opens`: under the first name, with these flags. Empty where it has no name.
  std::vector<UniqueFd> opened;
};

/// Makes a file, folder or fifo with the names of `entries` (the first has what describes it), opens it with the flags
/// `opens` (O_NOFOLLOW, which only an open by name can have) and takes the names away again, all with the rights of a
/// process that had it open. Where those do not suffice it comes back without its name,
/// which is noted: ckpt's own rights are never used in a folder that another user may change.
Result<Ghost> make_ghost(const std::vector<const store::FileIdentity*>& entries, const std::vector<int>& opens,
                         const Rights& rights, ProgressSink& progress);

/// The name of `path`, which was deleted, for the open file behind `file`, which has another one left: a descriptor
/// that shows it. Empty: the rights do not suffice.
UniqueFd name_again(int file, const std::string& path, const Rights& rights);

}  // namespace ckpt::restore
