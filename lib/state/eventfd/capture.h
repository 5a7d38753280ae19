// Eventfds, from the fdinfo of a descriptor.
#pragma once

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

void take_eventfd(const Place& place, store::Descriptor& d);

}  // namespace ckpt::capture
