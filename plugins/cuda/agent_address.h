// Where the agent of a process listens.
#pragma once

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::cuda {

/// A connection that only the process itself can be the other end of. kNotFound: no such process, or no agent in it.
Result<UniqueFd> connect_to_agent(int pid);

}  // namespace ckpt::cuda
