// Pidfds, from the fdinfo of a descriptor.
#pragma once

#include <string_view>

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

/// kUnsupported: of a process in another pid namespace. The caller checks that the process is one of the tree.
Result<store::ProcessHandle> parse_pidfd(std::string_view fdinfo);
/// Fills kind and state of `d`; false: a blocker was noted instead.
Result<bool> take_pidfd(DescriptorContext& context, const Place& place, store::Descriptor& d);

}  // namespace ckpt::capture
