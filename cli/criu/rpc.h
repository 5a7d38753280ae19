// criu's RPC on an inherited socket (criu swrk FD): what runc and podman speak.
#pragma once

#include "cli/criu/options.h"
#include "lib/base/cancel.h"

namespace ckpt::cli::criu {

/// Answers requests until the caller is done, and returns the exit code. `defaults`: what configuration files say.
int serve(int socket, const Options& defaults, const Cancel& cancel);

}  // namespace ckpt::cli::criu
