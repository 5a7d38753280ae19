// Whether processes could live at the other end, as far as that can be told before any of their memory has come.
#pragma once

#include "lib/base/result.h"
#include "lib/migrate/words.h"

namespace ckpt::migrate {

/// What the other end has to know of process `pid`, of its descendants and of this host. `id` and `wishes` stay empty.
Result<Hello> introduce(int pid);

/// At the other end: kUnsupported (its CPU), kPermission, kBusy (a number is taken). The restore checks all of it
/// again, and more.
Result<void> check_welcome(const Hello& hello);

}  // namespace ckpt::migrate
