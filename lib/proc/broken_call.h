// Calls that a mere stop breaks off.
#pragma once

#include "lib/base/result.h"

namespace ckpt::proc {

/// Sets a call of the stopped thread that our stop broke off up to run again; one that a waiting signal will break off
/// anyway is left alone.
Result<void> mend_broken_call(int pid, int tid);

}  // namespace ckpt::proc
