// Timerfds made again, in ckpt.
#pragma once

#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/state/descriptors/record.h"

namespace ckpt::restore {

/// Armed with the time that was left. As late as possible.
Result<void> arm_timerfd(int fd, const store::Descriptor& descriptor, ProgressSink& progress);

}  // namespace ckpt::restore
