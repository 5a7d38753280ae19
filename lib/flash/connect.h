// From a trainer's side, or anybody's who asks: the connection.
#pragma once

#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/flash/channel.h"

namespace ckpt::flash {

/// kNotFound: the folder has no agent. kPermission: it is another user's.
Result<UniqueFd> connect_agent(const std::string& directory, const std::string& socket);

/// An answer that says no becomes the error that the agent had.
Result<Answer> checked(Result<Answer> answer);

}  // namespace ckpt::flash
