// Whose rights a restore has: those of the image's owner, unless the caller trusts it.
#pragma once

#include <functional>
#include <string>

#include "lib/base/result.h"
#include "lib/engine/restore.h"

namespace ckpt::cli {

/// Root restores another user's image as that user would; `tell` is told of it. kPermission: it asks for what only root
/// could give.
Result<void> take_owner_rights(engine::RestoreOptions& options,
                               const std::function<void(const std::string&)>& tell);

}  // namespace ckpt::cli
