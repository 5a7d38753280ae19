// Standing back for the target while it runs.
#pragma once

namespace ckpt::proc {

/// The calling thread gives way to others, for good. On a kernel that schedules by sessions (autogroup, sched(7)) that counts
/// among ckpt's own threads only; the whole session at niceness 10 would get next to nothing beside a target that wants all
/// processors (14 MiB/s of copying instead of 400, torch with data loaders on two).
void be_nice();

}  // namespace ckpt::proc
