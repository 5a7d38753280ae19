// Whether processes could live at the other end, as far as that can be told before any of their memory has come.
#pragma once

#include <cstdint>
#include <string>

#include "lib/base/result.h"
#include "lib/migrate/words.h"

namespace ckpt::migrate {

/// What the other end has to know of process `pid`, of its descendants and of this host. `id` and `wishes` stay empty.
Result<Hello> introduce(int pid);

/// At the other end: kUnsupported (its CPU), kPermission, kBusy (a number is taken). The restore checks all of it
/// again, and more.
Result<void> check_welcome(const Hello& hello);

/// This host has memory for so much more, as far as it and the control groups of this process tell: else kNoRoom.
/// `whose`: "the processes have".
Result<void> check_memory(uint64_t bytes, const std::string& whose);

}  // namespace ckpt::migrate
