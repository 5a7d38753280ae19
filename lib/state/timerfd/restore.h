// Timerfds made again, in ckpt.
#pragma once

#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/descriptors/record.h"

namespace ckpt::restore {

/// Disarmed.
Result<UniqueFd> make_timerfd(const store::Descriptor& descriptor);
/// Armed with the time that was left. As late as possible.
Result<void> arm_timerfd(int fd, const store::Descriptor& descriptor, ProgressSink& progress);

}  // namespace ckpt::restore
