#include "lib/memory/snapshot.h"

#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>

#include "lib/proc/brief_stop.h"
#include "lib/proc/seen_number.h"

namespace ckpt::capture {

Result<Snapshot> Snapshot::take(proc::BorrowedThread& thread, int target, const proc::Gadgets& gadgets) {
  CKPT_TRY_ASSIGN(int pid, thread.fork_frozen());
  return Snapshot(target, pid, gadgets);
}

Result<uint64_t> Snapshot::finish() {
  int child = std::exchange(pid_, 0);
  if (child == 0) return uint64_t{0};
  const auto number = static_cast<uint64_t>(proc::number_seen_by(target_, child));
  ::kill(child, SIGKILL);
  for (auto stop = proc::wait_stop(child); stop && stop->kind != proc::StopKind::kEnded;
       stop = proc::wait_stop(child)) {
    (void)proc::resume(child, proc::Resume::kRun);
  }
  auto stood = proc::stop_briefly(
      target_, gadgets_, "frozen to reap the snapshot", [number](proc::BorrowedThread& thread) -> Result<void> {
        CKPT_TRY(thread.call(SYS_wait4, {number, 0, static_cast<uint64_t>(__WALL) | WNOHANG, 0}));
        return {};
      });
  // A target that has ended meanwhile leaves its children to others.
  if (!stood && stood.error().code == Code::kNotFound) return uint64_t{0};
  return stood;
}

}  // namespace ckpt::capture
