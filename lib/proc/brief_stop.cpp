#include "lib/proc/brief_stop.h"

#include "lib/base/clock.h"
#include "lib/base/trace.h"
#include "lib/proc/frozen_process.h"

namespace ckpt::proc {

Result<uint64_t> stop_briefly(int pid, Gadgets gadgets, const char* name,
                              const std::function<Result<void>(BorrowedThread&)>& calls) {
  constexpr uint64_t kFreezeTimeoutUs = 10'000'000;
  // All of its threads, though one makes the calls: for that moment there are a mapping and, maybe, a descriptor more,
  // which a fork by another thread would hand on for good, and bytes of the first thread's stack that are put back
  // afterwards.
  CKPT_TRY_ASSIGN(FrozenProcess frozen, FrozenProcess::freeze(pid, kFreezeTimeoutUs, Cancel()));
  if (!still_hold(pid, gadgets)) {
    CKPT_TRY_ASSIGN(std::vector<Vma> maps, read_maps(pid, false));
    CKPT_TRY_ASSIGN(gadgets, find_gadgets(pid, maps));
  }
  CKPT_TRY_ASSIGN(ParasiteArea area, ParasiteArea::map(pid, pid, gadgets));
  {
    CKPT_TRY_ASSIGN(BorrowedThread thread, BorrowedThread::begin(area, pid));
    CKPT_TRY(calls(thread));
    CKPT_TRY(thread.finish());
  }
  CKPT_TRY(area.unmap());
  frozen.release();
  const uint64_t now = monotonic_us();
  trace::interval(trace::Row::kTarget, name, frozen.frozen_at_us(), now);
  return now - frozen.frozen_at_us();
}

}  // namespace ckpt::proc
