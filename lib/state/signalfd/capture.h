// Signalfds, from the fdinfo of a descriptor.
#pragma once

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

void take_signalfd(const Place& place, store::Descriptor& d);

}  // namespace ckpt::capture
