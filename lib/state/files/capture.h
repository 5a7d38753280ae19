// Files, folders, plain devices and files of /proc, told from the link and the status of a descriptor.
#pragma once

#include "lib/state/descriptors/context.h"

namespace ckpt::capture {

/// Each fills kind and state of `d`; false: a blocker was noted instead.
Result<bool> take_file(DescriptorContext& context, const Place& place, const struct stat& st, store::Descriptor& d);
/// "/proc/12/status" of a process in the tree is opened again by the process that holds it; what belongs to no process
/// is a file like others.
Result<bool> take_proc_file(DescriptorContext& context, const Place& place, const struct stat& st,
                            store::Descriptor& d);
/// Null, zero, full, random, urandom. A terminal is only recognised.
Result<bool> take_device(DescriptorContext& context, const Place& place, const struct stat& st, store::Descriptor& d);

}  // namespace ckpt::capture
