#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "lib/proc/io_uring.h"
#include "lib/state/cgroups/capture.h"
#include "lib/state/walk.h"

namespace ckpt::capture {

namespace {

// struct sched_attr of linux/sched/types.h, whose sched_param clashes with glibc's.
struct SchedAttr {
  uint32_t size, sched_policy;
  uint64_t sched_flags;
  int32_t sched_nice;
  uint32_t sched_priority;
  uint64_t sched_runtime, sched_deadline, sched_period;
  uint32_t util_min, util_max;
};

void take_scheduling(int tid, store::Thread& thread) {
  SchedAttr attr{};
  if (::syscall(SYS_sched_getattr, tid, &attr, sizeof attr, 0) == 0) {
    thread.sched_policy = attr.sched_policy, thread.sched_flags = attr.sched_flags;
    thread.nice = attr.sched_nice, thread.sched_priority = attr.sched_priority;
    thread.sched_runtime = attr.sched_runtime, thread.sched_deadline = attr.sched_deadline;
    thread.sched_period = attr.sched_period;
  }
  uint8_t mask[1024] = {};
  long n = ::syscall(SYS_sched_getaffinity, tid, sizeof mask, mask);
  if (n > 0) {
    while (n > 1 && mask[n - 1] == 0) --n;
    thread.affinity.assign(mask, mask + n);
  }
  constexpr int kWhoProcess = 1;
  long ioprio = ::syscall(SYS_ioprio_get, kWhoProcess, tid);
  thread.ioprio = ioprio > 0 ? static_cast<int>(ioprio) : 0;
}

void take_credentials(const proc::Status& status, store::Thread& thread) {
  std::copy(std::begin(status.uid), std::end(status.uid), thread.uid.begin());
  std::copy(std::begin(status.gid), std::end(status.gid), thread.gid.begin());
  thread.groups = status.groups;
  thread.cap_inheritable = status.cap_inheritable, thread.cap_permitted = status.cap_permitted;
  thread.cap_effective = status.cap_effective, thread.cap_bounding = status.cap_bounding;
  thread.cap_ambient = status.cap_ambient;
  thread.no_new_privs = status.no_new_privs;
}

/// Of the leader: the process's; of another thread: only where they are others. Those of a thread that was there when
/// the tree still ran are believed to be what they were, as long as the leader's are.
Result<void> take_cgroups(const store::ProcessImage* earlier, int tid, store::ProcessImage& image,
                          store::Thread& thread) {
  if (earlier != nullptr && tid != image.pid && earlier->cgroups == image.cgroups) {
    auto is_before = [](const store::Thread& other, int number) {
      return other.tid < number;
    };  // sorted but for the first
    auto same = std::lower_bound(earlier->threads.begin() + 1, earlier->threads.end(), tid, is_before);
    if (same != earlier->threads.end() && same->tid == tid) {
      thread.cgroups = same->cgroups;
      return {};
    }
  }
  auto groups = read_cgroups(image.pid, tid);
  if (!groups && groups.error().code == Code::kNotFound)
    return {};  // it has ended since, or the kernel has no control groups
  if (!groups) return std::move(groups).error();
  if (tid == image.pid) {
    image.cgroups = std::move(*groups);
  } else if (*groups != image.cgroups) {
    thread.cgroups = std::move(*groups);
  }
  return {};
}

/// Of a tree that runs only what will be spared in the frozen window: the rest may be something else by then.
Result<void> take_thread(Walk& walk, size_t process, const store::ProcessImage* earlier, int tid,
                         std::optional<proc::Status> status) {
  store::ProcessImage& image = walk.out.image.processes[process];
  std::vector<proc::Status>& statuses = walk.out.statuses[process];
  if (status) statuses.push_back(std::move(*status));
  store::Thread& thread = image.threads.emplace_back();
  thread.tid = tid;
  CKPT_TRY(take_cgroups(earlier, tid, image, thread));
  if (tid != image.pid && !walk.options.frozen) return {};
  const proc::Status& current = statuses.back();
  thread.comm = current.comm;
  take_scheduling(tid, thread);
  take_credentials(current, thread);
  if (current.state == 'Z')
    walk.block(process, "thread " + std::to_string(tid), "has ended while others run: not supported");
  return {};
}

}  // namespace

Result<void> inventory_threads(Walk& walk, size_t process) {
  const int pid = walk.members[process].entry.pid;
  const int then = walk.options.earlier != nullptr ? walk.options.earlier->find(pid) : -1;
  const store::ProcessImage* earlier =
      then >= 0 ? &walk.options.earlier->image.processes[static_cast<size_t>(then)] : nullptr;
  CKPT_TRY_ASSIGN(std::vector<int> tids, proc::read_threads(pid));
  std::erase(tids, pid);
  if (!walk.options.frozen) std::erase_if(tids, [pid](int tid) { return proc::is_io_worker(pid, tid); });
  walk.out.image.processes[process].threads.reserve(tids.size() + 1);
  walk.out.statuses[process].reserve(tids.size() + 1);
  CKPT_TRY(take_thread(walk, process, earlier, pid, std::nullopt));  // its status is here already
  if (!walk.options.frozen) {
    for (int tid : tids) CKPT_TRY(take_thread(walk, process, earlier, tid, std::nullopt));
    return {};
  }
  CKPT_TRY_ASSIGN(auto found, proc::read_statuses(pid, tids));
  for (size_t i = 0; i < tids.size(); ++i) {
    // All others are held by ckpt.
    if (found[i] && found[i]->tracer == 0 && proc::is_io_worker(pid, tids[i])) continue;
    if (found[i])
      CKPT_TRY(
          take_thread(walk, process, earlier, tids[i], std::move(found[i])));  // else it has ended since the listing
  }
  return {};
}

}  // namespace ckpt::capture
