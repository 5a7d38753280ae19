// Terminals and pipes from outside the tree: what is noted of them (options.h).
#pragma once

#include "lib/state/descriptors/context.h"

namespace ckpt::capture::external {

/// `name`: what tells it, "tty /dev/pts/3" or "pipe:[123]"; `what`: in words, for the blocker that is noted where none
/// of the options allows it; then the answer is false.
bool take_terminal(DescriptorContext& context, const Place& place, std::string name, const std::string& what,
                   store::Descriptor& d);
bool take_pipe(DescriptorContext& context, const Place& place, std::string name, const std::string& what,
               store::Descriptor& d);

}  // namespace ckpt::capture::external
