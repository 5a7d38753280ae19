// Terminals and pipes from outside the tree, which the restoring shell gives again (--shell-job).
#pragma once

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

/// `name`: what tells it, "tty /dev/pts/3" or "pipe:[123]"; `what`: in words, for the blocker that is noted without
/// --shell-job, with which the answer is false.
Result<bool> take_external(DescriptorContext& context, const Place& place, std::string name, const std::string& what,
                           store::Descriptor& d);

}  // namespace ckpt::capture
