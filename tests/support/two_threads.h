#pragma once

#include "lib/state/tree/child.h"

/// A process of the numbers `pid` and `tid`, whose threads do what they are asked through `area`.
inline ckpt::Result<ckpt::restore::Child> child_of_two_threads(int pid, int tid,
                                                               ckpt::restore::RestorerArea& area) {
  CKPT_TRY_ASSIGN(auto child, ckpt::restore::Child::create(pid, area));
  ckpt::restore::SyscallBatch make;
  child.add_thread(make, tid);
  CKPT_TRY(child.run(make));
  CKPT_TRY(child.await_threads({tid}));
  return child;
}
