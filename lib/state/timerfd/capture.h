// Timerfds, from a duplicate and the fdinfo of a descriptor.
#pragma once

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

Result<bool> take_timerfd(const Place& place, store::Descriptor& d);

}  // namespace ckpt::capture
