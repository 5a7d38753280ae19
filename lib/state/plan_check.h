// What a restore would refuse, told from the manifest alone: nothing is made, opened or touched, and no page is read. A
// restore asks before it begins, a dump while its target still stands.
#pragma once

#include "lib/state/reasons.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Numbers, sessions and groups, sharing, descriptor numbers, timers, memory policies, filters: whether this host and
/// this ckpt can make them. The tree is one that `validate` let pass.
void check_plan(const store::TreeImage& tree, Reasons& reasons);

/// Everything that can be known of an image while the processes that it is of still hold their numbers, ports and
/// names. `ends`: they are about to end or stop, so the files must be what they were, too. kUnsupported: restore would
/// refuse it now and later; kBusy: something changed while the image was taken.
Result<void> check_before_end(const store::Manifest& manifest, bool ends);

}  // namespace ckpt::restore
