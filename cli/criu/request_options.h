// The options of a request, as those of criu's command line.
#pragma once

#include <sys/types.h>

#include "cli/criu/options.h"
#include "cli/criu/rpc.pb.h"

namespace ckpt::cli::criu {

/// Folders and the log, which come first: what is refused later is told there. Descriptors are those of process `peer`.
Result<void> take_folders(const criu_rpc::Options& request, pid_t peer, Options& options);
/// Everything else. kUnsupported: a field that would change what is done and that ckpt does not know, by its name or,
/// where it has none here, by its number.
Result<void> take_options(const criu_rpc::Options& request, pid_t peer, bool restores, Options& options);
/// Fields of a later criu's.
Result<void> check_known(const std::string& unknown_fields, const char* message);

}  // namespace ckpt::cli::criu
