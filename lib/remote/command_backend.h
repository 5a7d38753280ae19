// A program that speaks for a place: cmd:PROGRAM ARG... PLACE. ckpt(1), A PROGRAM AS A PLACE, is the contract.
#pragma once

#include <memory>

#include "lib/remote/backend.h"

namespace ckpt::remote {

/// Of `url`, which is of that kind. Nothing is run yet. Objects are written whole: uploads in parts are kUnsupported.
Result<std::unique_ptr<WritableBackend>> open_command(const Url& url, const Cancel* cancel);

}  // namespace ckpt::remote
