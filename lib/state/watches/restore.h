// inotify and fanotify groups made again.
#pragma once

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/watches/record.h"

namespace ckpt::restore {

/// Last of all files: what ckpt opens later shows up as an event. A watch on what is no longer there is kNotFound, on
/// what was replaced kMismatch. `flags`: O_NONBLOCK. The next watch of the program gets the number after the highest in
/// the image.
Result<UniqueFd> make_inotify(const store::Inotify& inotify, int flags);
Result<UniqueFd> make_fanotify(const store::Fanotify& fanotify);

}  // namespace ckpt::restore
