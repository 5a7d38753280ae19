#include "lib/engine/process_builder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "lib/memory/sharing.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/procfs.h"
#include "lib/state/aio/restore.h"
#include "lib/state/attributes/restore.h"
#include "lib/state/credentials/restore.h"
#include "lib/state/epoll/restore.h"
#include "lib/state/files/proc_files.h"
#include "lib/state/io_uring/restore.h"
#include "lib/state/locks/restore.h"
#include "lib/state/mappings/restore.h"
#include "lib/state/memory_policies/restore.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/pidfds/restore.h"
#include "lib/state/seccomp/restore.h"
#include "lib/state/signals/restore.h"
#include "lib/state/system_v_ipc/restore.h"
#include "lib/state/threads/restore.h"
#include "lib/state/timers/restore.h"

namespace ckpt::restore {

Result<void> ProcessBuilder::join_groups() {
  join_cgroups(cgroup_mounts_, image_.pid, image_.cgroups, progress_);
  return {};
}

Result<void> ProcessBuilder::place() {
  if (image_.descriptors_of >= 0) return {};
  SyscallBatch batch;
  place_descriptors(tree_, descriptors_, index_, base_, child_.area(), batch);
  CKPT_TRY(child_.run(batch));
  CKPT_TRY(open_proc_files(tree_, index_, false, child_));
  CKPT_TRY(open_pidfds(tree_, index_, spare_, child_));
  return make_polled_rings(reader_, index_, [&](int description) { return descriptors_.source(description); },
                           child_);
}

Result<void> ProcessBuilder::map(bool lazy, const CommonMemory* common) {
  if (image_.memory_of >= 0) return {};
  plan_ = plan_memory(reader_, image_, lazy);
  blocks_ = blocks_to_fill(reader_, image_, plan_);
  if (child_.held() != nullptr) CKPT_TRY(inherit(reader_, image_, blocks_, *child_.held(), plan_));
  if (common != nullptr) {
    common->offer(static_cast<size_t>(index_), false, image_, plan_);
    moved_pages_ = common->pages_of(static_cast<size_t>(index_), plan_);
    blocks_ = blocks_to_fill(reader_, image_, plan_);
  }
  const bool on_demand = plan_.has(Supply::kOnDemand);
  if (plan_.needs_userfault()) {
    auto made = make_userfault(child_, on_demand);
    if (made) userfault_ = std::move(*made);
    else if (on_demand) return std::move(made).error().with_hint("without --lazy it is restored all the same");
    else plan_.write_instead();
  }
  CKPT_TRY(lay_out_memory(tree_, image_, plan_, files_, child_));
  CKPT_TRY(map_rings(tree_, index_, files_.io_urings, child_));
  CKPT_TRY(make_aio_contexts(reader_, index_, files_.empty, child_));
  if (child_.held() != nullptr)
    CKPT_TRY(drop_pages(pages_to_drop(reader_, image_, blocks_, *child_.held(), plan_), child_));
  CKPT_TRY(watch_mappings(image_, plan_, Supply::kCopy, userfault_.fd.get()));
  return watch_mappings(image_, plan_, Supply::kOnDemand, userfault_.fd.get());
}

std::optional<PagedMemory> ProcessBuilder::paged() const {
  if (!plan_.has(Supply::kOnDemand)) return std::nullopt;
  PagedMemory out;
  out.pid = image_.pid, out.space = image_.space;
  out.userfault = UniqueFd(::fcntl(userfault_.fd.get(), F_DUPFD_CLOEXEC, 3));
  out.can_poison = userfault_.abilities.poison;
  for (size_t i = 0; i < image_.maps.size(); ++i) {
    if (plan_.supply[i] == Supply::kOnDemand) out.ranges.emplace_back(image_.maps[i].start, image_.maps[i].end);
  }
  for (const store::ProcessImage& process : tree_.processes) {
    if (&process == &image_ || process.memory_of == index_) add_hot_addresses(process, out.hot);
  }
  return out;
}

Result<FillTotals> ProcessBuilder::fill(const Cancel& cancel) {
  if (image_.memory_of >= 0) return FillTotals();
  const Filling filling{image_, plan_, std::move(blocks_), child_.held(), child_.pid(), userfault_.fd.get()};
  auto filled = fill_memory(reader_, filling, progress_, cancel);
  if (plan_.has(Supply::kOnDemand)) CKPT_TRY(unwatch_mappings(image_, plan_, Supply::kCopy, userfault_.fd.get()));
  userfault_.fd.reset();
  if (filled) filled->pages += moved_pages_, filled->bytes += moved_pages_ * store::kPageSize;
  return filled;
}

Result<void> ProcessBuilder::set_process_state() {
  SyscallBatch batch;
  CKPT_TRY(set_login_uid(image_, child_, progress_));
  set_identity(image_, batch);
  if (image_.memory_of < 0) register_barriers(image_, batch);
  if (image_.memory_of < 0) protect_memory(image_, plan_, child_.area(), batch);
  if (image_.fs_of < 0) set_folders(image_, tree_, files_, child_, batch);
  if (image_.memory_of < 0) set_bounds(image_, files_, child_, batch);
  if (image_.descriptors_of < 0) connect_descriptors(tree_, index_, child_, batch);
  register_buffers(tree_, index_, child_.area(), batch);
  CKPT_TRY(child_.run(batch));
  tell_unlocked(batch, child_, progress_);
  CKPT_TRY(settle_fired(tree_, index_, child_, progress_));
  set_through_proc(image_, progress_);
  return {};
}

Result<void> ProcessBuilder::claim() {
  SyscallBatch batch;
  claim_ipc(tree_.ipc, image_.pid, sorted_pids(), child_.area(), batch);
  return child_.run(batch);
}

Result<void> ProcessBuilder::adjust() {
  SyscallBatch batch;
  adjust_semaphores(tree_.ipc, index_, child_.area(), batch);
  return child_.run(batch);
}

Result<void> ProcessBuilder::finish_claims() {
  SyscallBatch batch;
  restore::finish_claims(tree_.ipc, image_.pid, child_.area(), batch);
  return child_.run(batch);
}

Result<void> ProcessBuilder::enter_namespaces(const std::vector<int>& further, bool mounts) {
  SyscallBatch batch;
  for (const int index : image_.namespaces) {
    const std::string& kind = tree_.namespaces.further[static_cast<size_t>(index)].kind;
    if (kind != "pid" && (kind == "mnt") == mounts)
      batch.add("enter a namespace", SYS_setns, further[static_cast<size_t>(index)], state::further_flag(kind));
  }
  CKPT_TRY(child_.run(batch));
  return mounts && image_.descriptors_of < 0 ? open_proc_files(tree_, index_, true, child_) : Result<void>();
}

Result<void> ProcessBuilder::enter_user_namespace(int handle) {
  SyscallBatch batch;
  CKPT_TRY(restore::enter_user_namespace(image_, handle, child_.area(), batch));
  return child_.run(batch);
}

Result<void> ProcessBuilder::drop_descriptors() {
  if (image_.descriptors_of >= 0) return {};
  SyscallBatch batch;
  drop_inherited(base_, batch);
  for (const auto& [fd, lock] : image_.locks) take_posix_locks(fd, {lock}, child_.area(), batch);
  return child_.run(batch);
}

Result<void> ProcessBuilder::set_threads(const LabelChanges& labels) {
  RestorerArea& area = child_.area();
  CKPT_TRY(hear_of_children());
  CKPT_TRY(change_labels(image_, labels, true, child_));
  CKPT_TRY(create_threads(image_, child_));
  if (image_.memory_of < 0) CKPT_TRY(set_futex_table(image_, child_, progress_));
  for (const store::Thread& thread : image_.threads) {
    if (!thread.cgroups.empty())
      join_cgroups_alone(cgroup_mounts_, image_.pid, thread.tid, thread.cgroups, progress_);
  }
  CKPT_TRY(set_thread_state(image_, child_, regs_, progress_));
  SyscallBatch leader;
  if (image_.sighand_of < 0) set_actions(image_, area, leader);
  if (image_.memory_of < 0) lock_future_memory(image_, leader);
  set_limits(image_, child_, leader, progress_);
  install_common_filters(image_.seccomp, area, leader);
  CKPT_TRY(child_.run(leader));
  tell_unlocked(leader, child_, progress_);
  ThreadBatches batches(image_.threads.size());
  queue_signals(image_, area, batches);
  register_numbers(tree_, index_, area, batches);
  limit_workers(tree_, index_, area, batches);
  for (size_t i = 0; i < batches.size(); ++i) {
    const store::MemoryPolicy& policy = image_.threads[i].policy;
    if (policy.mode != 0) set_thread_policy(policy, area, batches[i]);
  }
  install_own_filters(image_.seccomp, area, batches);
  CKPT_TRY(set_credentials(image_, area, batches));
  CKPT_TRY(run_in_threads(image_, batches, child_));
  CKPT_TRY(change_labels(image_, labels, false, child_));
  CKPT_TRY(set_extended_registers(reader_, image_, child_));
  child_.leave_parent();
  ThreadBatches last(image_.threads.size());
  set_after_credentials(image_, last);
  set_timers(image_, area, last[0]);
  CKPT_TRY(run_in_threads(image_, last, child_));
  tell_timer_ids(image_, last[0], progress_);
  return {};
}

Result<void> ProcessBuilder::finish() {
  CKPT_TRY(finish_trap_signal(image_, child_));
  CKPT_TRY(resume_sleeps(image_, child_, regs_));
  if (image_.memory_of < 0) CKPT_TRY(remove_scratch());
  CKPT_TRY(set_final_registers(image_, regs_));
  if (index_ != 0 && (image_.stopped || image_.wait_status != store::WaitStatus::kNone))
    return child_.stop_as_by_signal(image_.stop_signal, image_.wait_status == store::WaitStatus::kContinued);
  return {};
}

Result<void> ProcessBuilder::release() {
  // The stopped root goes on being stopped: the signal is there before its first thread could run. So is one that was
  // waiting.
  const bool stops = (index_ == 0 && image_.stopped) || has_waiting_stop(image_);
  if (stops && ::kill(image_.pid, SIGSTOP) != 0)
    return sys_error(fmt::format("process {}", image_.pid), "cannot be stopped");
  return child_.release();
}

std::vector<int> ProcessBuilder::sorted_pids() const {
  std::vector<int> out;
  for (const store::ProcessImage& process : tree_.processes) {
    if (!process.zombie) out.push_back(process.pid);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<void> ProcessBuilder::hear_of_children() {
  SyscallBatch batch;
  for (const store::ProcessImage& other : tree_.processes) {
    if (other.parent_pid != image_.pid || !other.stopped || other.wait_status != store::WaitStatus::kNone) continue;
    const int number = state::number_seen_by(tree_, static_cast<size_t>(index_), other.pid);
    batch.add("wait for a stopped child", SYS_waitid, P_PID, number, 0, WSTOPPED | WNOHANG | __WALL, 0);
  }
  return child_.run(batch);
}

Result<void> ProcessBuilder::remove_scratch() {
  const RestorerArea& area = child_.area();
  CKPT_TRY_ASSIGN(std::vector<proc::Vma> maps, proc::read_maps(child_.pid(), false));
  std::erase_if(maps, [&](const proc::Vma& vma) {
    return vma.start >= area.address() && vma.end <= area.address() + RestorerArea::kSize;
  });
  CKPT_TRY_ASSIGN(proc::RemoteAddress instruction, proc::find_syscall_instruction(child_.pid(), maps));
  Call unmap{SYS_munmap, 0, {area.address(), RestorerArea::kSize}, 0};
  CKPT_TRY_ASSIGN(int64_t result, child_.call_once(child_.pid(), raw(instruction), unmap));
  if (result != 0) return sys_error(static_cast<int>(-result), "", "cannot remove what ckpt put into the process");
  return {};
}

}  // namespace ckpt::restore
