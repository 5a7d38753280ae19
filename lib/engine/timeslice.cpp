#include "lib/engine/timeslice.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/clock.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/suspend.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

class Jobs {
 public:
  Jobs(std::vector<int> pids, const GpuOptions& options, const Cancel& cancel)
      : pids_(std::move(pids)), options_(options), cancel_(cancel) {}

  Result<void> run(uint64_t quantum_us, const std::function<void(const Turn&)>& told);
  /// As many as fit, the one whose turn it is first.
  Result<void> resume_all();

 private:
  Result<uint64_t> suspend_one(int pid);
  Result<uint64_t> resume_one(int pid);
  /// Until the time is up, the process has ended, or a stop was asked for.
  Result<void> wait(int pid, uint64_t us) const;
  void drop_ended() {
    std::erase_if(pids_, [](int pid) { return proc::has_ended(pid); });
  }

  std::vector<int> pids_;  ///< the first has the GPUs
  const GpuOptions& options_;
  const Cancel& cancel_;
};

/// One in the middle of its end answers with errors of the driver's before the kernel has it as ended.
bool ends_soon(int pid) {
  constexpr int kPatienceMs = 500;
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended{process.get(), POLLIN, 0};
  return !process || ::poll(&ended, 1, kPatienceMs) > 0;
}

/// One that is suspended already stays so.
Result<uint64_t> Jobs::suspend_one(int pid) {
  auto done = suspend({pid}, options_, cancel_);
  if (done) return done->lock_us + done->checkpoint_us;
  if (done.error().code == Code::kNotFound && !needed_to_resume(pid).empty()) return 0;
  return ends_soon(pid) ? Result<uint64_t>(0) : Result<uint64_t>(std::move(done).error());
}

Result<uint64_t> Jobs::resume_one(int pid) {
  auto done = resume({pid}, options_);
  if (done) return done->restore_us;
  return ends_soon(pid) ? Result<uint64_t>(0) : Result<uint64_t>(std::move(done).error());
}

Result<void> Jobs::wait(int pid, uint64_t us) const {
  constexpr uint64_t kLookUs = 200'000;
  UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return errno == ESRCH ? Result<void>() : sys_error(proc::describe_pid(pid), "cannot be waited for");
  for (const Stopwatch watch; watch.elapsed_us() < us;) {
    CKPT_TRY(cancel_.check());
    pollfd ended{process.get(), POLLIN, 0};
    const uint64_t left = us - std::min(us, watch.elapsed_us());
    if (::poll(&ended, 1, static_cast<int>(std::min(left, kLookUs) / 1000 + 1)) > 0) return {};
  }
  return cancel_.check();
}

Result<void> Jobs::run(uint64_t quantum_us, const std::function<void(const Turn&)>& told) {
  for (size_t i = 1; i < pids_.size(); ++i) CKPT_TRY(suspend_one(pids_[i]));
  Turn turn{pids_.front(), 0, 0};
  for (;;) {
    CKPT_TRY_ASSIGN(turn.resume_us, resume_one(pids_.front()));
    told(turn);
    CKPT_TRY(wait(pids_.front(), quantum_us));
    const int current = pids_.front();
    drop_ended();
    turn = {};
    if (pids_.empty()) return {};
    if (pids_.front() == current) {
      if (pids_.size() == 1) return {};
      auto suspended = suspend_one(current);
      if (!suspended && suspended.error().code != Code::kBusy) return std::move(suspended).error();
      if (suspended) std::rotate(pids_.begin(), pids_.begin() + 1, pids_.end());
      turn.suspend_us = suspended.value_or(0);
    }
    turn.pid = pids_.front();
  }
}

Result<void> Jobs::resume_all() {
  drop_ended();
  std::string left;
  Result<void> first;
  for (int pid : pids_) {
    auto resumed = resume_one(pid);
    if (resumed) continue;
    left += fmt::format("{}`ckpt resume -p {}`", left.empty() ? "" : ", ", pid);
    if (first) first = std::move(resumed).error();
  }
  if (first) return first;
  return Error(std::move(first).error()).with_hint(left + ", once there is room");
}

}  // namespace

Result<void> timeslice(std::vector<int> pids, uint64_t quantum_us, const GpuOptions& options,
                       const std::function<void(const Turn&)>& told, const Cancel& cancel) {
  Jobs jobs(std::move(pids), options, cancel);
  auto done = jobs.run(quantum_us, told);
  auto resumed = jobs.resume_all();
  if (done || resumed) return done ? resumed : done;
  return Error(std::move(done).error()).with_cause(resumed.error().text()).with_hint(resumed.error().hint);
}

}  // namespace ckpt::engine
