// A folder for sockets that only this user may write, so that nobody else can take their names first.
#pragma once

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt {

/// root: /run/ckpt; others: ckpt in $XDG_RUNTIME_DIR or /run/user/UID; where there is none, /tmp/ckpt-UID, whose name
/// somebody else may have taken. Made 0700 if need be, opened O_PATH. kPermission: there is none that is ours alone.
Result<UniqueFd> open_run_folder();

/// For what another session of this user must find: the same whatever the environment of either says, and whether
/// somebody is logged in. root: /run/ckpt; others: /tmp/ckpt-UID. Errors as above.
Result<UniqueFd> open_common_run_folder();

}  // namespace ckpt
