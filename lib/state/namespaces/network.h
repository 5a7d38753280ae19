// What of a network namespace goes with an image: its loopback interface and its settings. What does not is named.
#pragma once

#include "lib/base/result.h"
#include "lib/state/namespaces/record.h"

namespace ckpt::capture {

/// Of the namespace that this thread is in. Some ten milliseconds: every setting is read, and compared with that of a
/// new namespace. Needs CAP_SYS_ADMIN.
Result<store::Network> take_network();

}  // namespace ckpt::capture
