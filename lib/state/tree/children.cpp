#include "lib/state/tree/children.h"

#include <sys/syscall.h>
#include <sys/wait.h>

#include "lib/state/namespaces/pids.h"

namespace ckpt::capture {

ChildQuestions::ChildQuestions(proc::CallList& calls, const store::TreeImage& tree, size_t parent) {
  constexpr uint64_t kOptions = WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT | __WALL;
  for (const store::ProcessImage& process : tree.processes) {
    if (process.parent_pid != tree.processes[parent].pid || process.zombie) continue;
    const int number = state::number_seen_by(tree, parent, process.pid);
    children_.push_back(process.pid);
    calls_.push_back(calls.add("ask for its children", SYS_waitid,
                               {P_PID, static_cast<uint64_t>(number), 0, kOptions, 0}, sizeof(siginfo_t),
                               proc::kThird));
  }
}

void ChildQuestions::take(const proc::CallList& calls, store::TreeImage& tree) const {
  for (size_t i = 0; i < children_.size(); ++i) {
    const auto info = calls.written<siginfo_t>(calls_[i]);
    if (calls.result(calls_[i]) != 0 || info.si_pid == 0) continue;
    for (store::ProcessImage& child : tree.processes) {
      if (child.pid == children_[i])
        child.wait_status = info.si_code == CLD_CONTINUED ? store::WaitStatus::kContinued : store::WaitStatus::kStopped;
    }
  }
}

}  // namespace ckpt::capture
