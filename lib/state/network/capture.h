// What of a network namespace goes with an image, and what does not, which is named.
#pragma once

#include "lib/base/result.h"
#include "lib/state/network/record.h"

namespace ckpt::capture {

/// Of the namespace that this thread is in. Some ten milliseconds: every setting is read, and compared with that of a
/// new namespace; where there is more than a loopback interface, all of it is made in another new one. Needs
/// CAP_SYS_ADMIN.
Result<store::Network> take_network();

}  // namespace ckpt::capture
