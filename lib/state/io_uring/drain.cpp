#include "lib/state/io_uring/drain.h"

#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "lib/base/clock.h"
#include "lib/base/trace.h"
#include "lib/proc/io_uring.h"
#include "lib/state/io_uring/capture.h"

namespace ckpt::capture {

namespace {

struct Flight {
  uint32_t requests = 0;   ///< that no other file keeps waiting
  uint64_t completed = 0;  ///< of all rings: changes as long as there is progress
};

Result<Flight> look(int pid, const std::vector<RingPlace>& rings) {
  Flight out;
  for (const RingPlace& ring : rings) {
    CKPT_TRY_ASSIGN(const proc::UringInfo info, proc::read_uring_info(pid, ring.fd));
    const auto waiting = static_cast<uint32_t>(info.polled.size());
    out.requests += std::max(in_flight(info, 0).requests, waiting) - waiting;
    // The kernel's own thread does not stand still.
    if (info.poller >= 0 && info.tail != info.submitted) ++out.requests;
    out.completed += info.completed;
  }
  return out;
}

Result<void> enter_rings(const proc::ParasiteArea& area, int tid, const std::vector<RingPlace>& rings) {
  CKPT_TRY_ASSIGN(proc::BorrowedThread thread, proc::BorrowedThread::begin(area, tid));
  for (const RingPlace& ring : rings) {
    // Of a thread that may not enter this ring (IORING_SETUP_DEFER_TASKRUN) it is refused, which does no harm.
    CKPT_TRY(thread.call(SYS_io_uring_enter, {static_cast<uint64_t>(ring.fd), 0, 0, IORING_ENTER_GETEVENTS, 0, 0}));
  }
  return thread.finish();
}

}  // namespace

Result<bool> drain_rings(const proc::FrozenProcess& frozen, const proc::Gadgets* gadgets,
                         const std::vector<RingPlace>& rings) {
  constexpr uint64_t kPatienceUs = 20'000, kLimitUs = 200'000;
  constexpr unsigned kPauseUs = 100;
  CKPT_TRY_ASSIGN(Flight flight, look(frozen.pid(), rings));
  if (flight.requests == 0) return true;
  if (gadgets == nullptr) return false;
  trace::Span span("drain io_uring");
  CKPT_TRY_ASSIGN(proc::ParasiteArea area, proc::ParasiteArea::map(frozen.pid(), frozen.pid(), *gadgets));
  const uint64_t begin = monotonic_us();
  uint64_t progress = begin;
  while (flight.requests != 0) {
    const uint64_t now = monotonic_us();
    if (now - progress > kPatienceUs || now - begin > kLimitUs) break;
    ::usleep(kPauseUs);
    for (int tid : frozen.threads()) CKPT_TRY(enter_rings(area, tid, rings));
    const uint64_t before = flight.completed;
    CKPT_TRY_ASSIGN(flight, look(frozen.pid(), rings));
    if (flight.completed != before) progress = monotonic_us();
  }
  CKPT_TRY(area.unmap());
  return flight.requests == 0;
}

}  // namespace ckpt::capture
