// Signalfds made again, in ckpt.
#pragma once

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/descriptors/record.h"

namespace ckpt::restore {

Result<UniqueFd> make_signalfd(const store::Descriptor& descriptor);

}  // namespace ckpt::restore
