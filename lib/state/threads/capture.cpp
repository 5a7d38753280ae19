#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "lib/proc/host.h"
#include "lib/proc/io_uring.h"
#include "lib/state/cgroups/capture.h"
#include "lib/state/labels/capture.h"
#include "lib/state/threads/clamps.h"
#include "lib/state/walk.h"

namespace ckpt::capture {

namespace {

bool is_fair(const SchedulingAttributes& attr) { return attr.policy == SCHED_OTHER || attr.policy == SCHED_BATCH; }

/// How long ckpt may run at a time: what the kernel has chosen for this machine. 0: it does not say (before 6.12).
uint64_t usual_slice() {
  static const uint64_t usual = [] {
    SchedulingAttributes own{};
    return ::syscall(SYS_sched_getattr, 0, &own, sizeof own, 0) == 0 && is_fair(own) ? own.runtime : 0;
  }();
  return usual;
}

void take_scheduling(int tid, store::Thread& thread) {
  SchedulingAttributes attr{};
  if (::syscall(SYS_sched_getattr, tid, &attr, sizeof attr, 0) == 0) {
    thread.sched_policy = attr.policy, thread.sched_flags = attr.flags;
    thread.nice = attr.nice, thread.sched_priority = attr.priority;
    // A slice that it did not ask for is another one on a machine with more processors.
    thread.sched_runtime = is_fair(attr) && attr.runtime == usual_slice() ? 0 : attr.runtime;
    thread.sched_deadline = attr.deadline, thread.sched_period = attr.period;
    const Clamps clamps = chosen_clamps(attr, usual_clamps());
    thread.util_min = clamps.min, thread.util_max = clamps.max;
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

/// The same one, as it was in the look before; null: it was not there.
const store::Thread* find_earlier(const store::ProcessImage* earlier, int tid) {
  if (earlier == nullptr || earlier->threads.empty()) return nullptr;
  if (earlier->threads[0].tid == tid) return &earlier->threads[0];
  auto is_before = [](const store::Thread& other, int number) { return other.tid < number; };
  auto same = std::lower_bound(earlier->threads.begin() + 1, earlier->threads.end(), tid, is_before);
  return same != earlier->threads.end() && same->tid == tid ? &*same : nullptr;
}

/// Of the leader: the process's; of another thread: only where they are others. Those of a thread that was there when
/// the tree still ran are believed to be what they were, as long as the leader's are.
Result<void> take_cgroups(const store::ProcessImage* earlier, const store::Thread* same, store::ProcessImage& image,
                          store::Thread& thread) {
  const int tid = thread.tid;
  if (same != nullptr && tid != image.pid && earlier->cgroups == image.cgroups) {
    thread.cgroups = same->cgroups;
    return {};
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

/// Threads that share one may run on the threads of a core side by side, and with nobody else.
void block_core_cookie(Walk& walk, size_t process, int tid) {
  constexpr int kSchedCore = 62, kGet = 0, kOfThread = 0;  // PR_SCHED_CORE, 5.14
  static const bool known = [] {
    uint64_t own = 0;
    return ::prctl(kSchedCore, kGet, 0, kOfThread, &own) == 0;
  }();
  uint64_t cookie = 0;
  if (!known || ::prctl(kSchedCore, kGet, tid, kOfThread, &cookie) != 0 || cookie == 0) return;
  walk.block(process, "thread " + std::to_string(tid),
             "has a cookie of core scheduling (PR_SCHED_CORE), which is not supported");
}

/// PR_SET_IO_FLUSHER, for which a thread itself would need CAP_SYS_RESOURCE to be asked.
bool is_io_flusher(const proc::Stat& stat) {
  constexpr uint64_t kBoth = 0x80000 | 0x100000;  // PF_MEMALLOC_NOIO, PF_LOCAL_THROTTLE
  return (stat.kernel_flags & kBoth) == kBoth;
}

/// One thread of the listing, and what has been read of it there.
struct Listed {
  int tid = 0;
  std::optional<proc::Status> status = {};  ///< nothing for the first one, whose status is there
  std::optional<proc::Stat> stat = {};
};

/// What a thread may have, and hardly any has: of one that was there when the tree still ran it is believed to be what
/// it was, but for the labels of the first.
Result<void> take_rare(const store::Thread* same, int pid, const Listed& listed, store::Thread& thread) {
  const bool is_leader = thread.tid == pid;
  if (same != nullptr) thread.io_flusher = same->io_flusher;
  else if (listed.stat) thread.io_flusher = is_io_flusher(*listed.stat);
  else if (auto stat = proc::read_thread_stat(pid, thread.tid)) thread.io_flusher = is_io_flusher(*stat);
  if (same != nullptr && !is_leader) {
    thread.labels = same->labels;
    return {};
  }
  CKPT_TRY_ASSIGN(thread.labels, read_labels(pid, thread.tid));
  return {};
}

/// Of a tree that runs only what will be spared in the frozen window: the rest may be something else by then.
Result<void> take_thread(Walk& walk, size_t process, const store::ProcessImage* earlier, Listed listed) {
  store::ProcessImage& image = walk.out.image.processes[process];
  std::vector<proc::Status>& statuses = walk.out.statuses[process];
  const int tid = listed.tid;
  if (listed.status) statuses.push_back(std::move(*listed.status));
  store::Thread& thread = image.threads.emplace_back();
  thread.tid = tid;
  const store::Thread* same = find_earlier(earlier, tid);
  CKPT_TRY(take_cgroups(earlier, same, image, thread));
  CKPT_TRY(take_rare(same, image.pid, listed, thread));
  if (!walk.options.frozen) block_core_cookie(walk, process, tid);
  if (tid != image.pid && !walk.options.frozen) return {};
  const proc::Status& current = statuses.back();
  if (!current.ns_pids.empty()) thread.inner_tids.assign(current.ns_pids.begin() + 1, current.ns_pids.end());
  thread.comm = current.comm;
  take_scheduling(tid, thread);
  take_credentials(current, thread);
  if (current.state == 'Z')
    walk.block(process, "thread " + std::to_string(tid), "has ended while others run: not supported");
  return {};
}

/// Of a tree that runs, without those that work for an io_uring.
Result<void> take_running_threads(Walk& walk, size_t process, const store::ProcessImage* earlier,
                                  const std::vector<int>& tids) {
  const int pid = walk.members[process].entry.pid;
  for (int tid : tids) {
    auto stat = proc::read_thread_stat(pid, tid);
    if (stat && proc::is_io_worker(*stat)) continue;
    CKPT_TRY(take_thread(walk, process, earlier,
                         {tid, std::nullopt, stat ? std::optional(std::move(*stat)) : std::nullopt}));
  }
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
  walk.out.image.processes[process].threads.reserve(tids.size() + 1);
  walk.out.statuses[process].reserve(tids.size() + 1);
  CKPT_TRY(take_thread(walk, process, earlier, {pid}));
  if (!walk.options.frozen) return take_running_threads(walk, process, earlier, tids);
  CKPT_TRY_ASSIGN(auto found, proc::read_statuses(pid, tids));
  for (size_t i = 0; i < tids.size(); ++i) {
    if (!found[i]) continue;  // it has ended since the listing
    // All others are held by ckpt.
    if (found[i]->tracer == 0 && proc::is_io_worker(pid, tids[i])) continue;
    CKPT_TRY(take_thread(walk, process, earlier, {tids[i], std::move(found[i])}));
  }
  return {};
}

}  // namespace ckpt::capture
