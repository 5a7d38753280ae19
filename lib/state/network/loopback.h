// Interface "lo" of the network namespace that this thread is in.
#pragma once

#include "lib/base/result.h"

namespace ckpt::state {

Result<void> raise_loopback();

}  // namespace ckpt::state
