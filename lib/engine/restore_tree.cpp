#include "lib/engine/restore_tree.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <map>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/trace.h"
#include "lib/memory/common.h"
#include "lib/memory/fill.h"
#include "lib/memory/lazy/daemon.h"
#include "lib/memory/sharing.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/packet_filter.h"
#include "lib/proc/procfs.h"
#include "lib/state/aio/restore.h"
#include "lib/state/attributes/restore.h"
#include "lib/state/cgroups/restore.h"
#include "lib/state/credentials/restore.h"
#include "lib/state/descriptors/inherited.h"
#include "lib/state/descriptors/restore.h"
#include "lib/state/epoll/restore.h"
#include "lib/state/external/restore.h"
#include "lib/state/files/proc_files.h"
#include "lib/state/files/restore.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/host_check.h"
#include "lib/state/huge_pages/restore.h"
#include "lib/state/io_uring/restore.h"
#include "lib/state/locks/restore.h"
#include "lib/state/mappings/restore.h"
#include "lib/state/memory_policies/restore.h"
#include "lib/state/mounts/memory_files_restore.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/pidfds/restore.h"
#include "lib/state/plan_check.h"
#include "lib/state/seccomp/restore.h"
#include "lib/state/shared_memory/restore.h"
#include "lib/state/signals/restore.h"
#include "lib/state/system_v_ipc/restore.h"
#include "lib/state/threads/restore.h"
#include "lib/state/timers/restore.h"
#include "lib/state/tree/child.h"
#include "lib/state/tree/restore.h"
#include "lib/state/tree/seed.h"
#include "lib/state/validate.h"

namespace ckpt::restore {

namespace {

/// Everything that is one process's alone, once it exists: memory, descriptors, threads, in the order of the members.
/// What it shares with another one is set up there.
class ProcessBuilder {
 public:
  ProcessBuilder(const store::ImageReader& image, size_t index, Child& child, const OpenedFiles& files,
                 const DescriptorPlan& descriptors, const CgroupMounts& cgroup_mounts, int base, int spare,
                 ProgressSink& progress)
      : reader_(image),
        tree_(image.manifest().tree),
        image_(tree_.processes[index]),
        index_(static_cast<int>(index)),
        child_(child),
        files_(files),
        descriptors_(descriptors),
        cgroup_mounts_(cgroup_mounts),
        base_(base),
        spare_(spare),
        progress_(progress) {}

  const Child& child() const { return child_; }

  /// Before anything is charged to it.
  Result<void> join_groups() {
    join_cgroups(cgroup_mounts_, image_.pid, image_.cgroups, progress_);
    return {};
  }

  Result<void> place() {
    if (image_.descriptors_of >= 0) return {};
    SyscallBatch batch;
    place_descriptors(tree_, descriptors_, index_, base_, child_.area(), batch);
    CKPT_TRY(child_.run(batch));
    CKPT_TRY(open_proc_files(tree_, index_, child_));
    CKPT_TRY(open_pidfds(tree_, index_, spare_, child_));
    return make_polled_rings(reader_, index_, [&](int description) { return descriptors_.source(description); },
                             child_);
  }

  Result<void> map(bool lazy, const CommonMemory* common) {
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

  /// What the lazy-pages daemon has to supply, if anything.
  std::optional<PagedMemory> paged() const {
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

  Result<FillTotals> fill(const Cancel& cancel) {
    if (image_.memory_of >= 0) return FillTotals();
    const Filling filling{image_, plan_, std::move(blocks_), child_.held(), child_.pid(), userfault_.fd.get()};
    auto filled = fill_memory(reader_, filling, progress_, cancel);
    if (plan_.has(Supply::kOnDemand)) CKPT_TRY(unwatch_mappings(image_, plan_, Supply::kCopy, userfault_.fd.get()));
    userfault_.fd.reset();
    if (filled) filled->pages += moved_pages_, filled->bytes += moved_pages_ * store::kPageSize;
    return filled;
  }

  Result<void> set_process_state() {
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

  /// What the kernel notes of the last user of a semaphore or a queue; then `finish_claims`, once all have claimed.
  Result<void> claim() {
    SyscallBatch batch;
    claim_ipc(tree_.ipc, image_.pid, sorted_pids(), child_.area(), batch);
    return child_.run(batch);
  }
  Result<void> adjust() {
    SyscallBatch batch;
    adjust_semaphores(tree_.ipc, index_, child_.area(), batch);
    return child_.run(batch);
  }
  Result<void> finish_claims() {
    SyscallBatch batch;
    restore::finish_claims(tree_.ipc, image_.pid, child_.area(), batch);
    return child_.run(batch);
  }

  /// The last that a process does with ckpt's own rights, while it has one thread and ckpt's descriptors.
  Result<void> enter_user_namespace(int handle) {
    SyscallBatch batch;
    CKPT_TRY(restore::enter_user_namespace(image_, handle, child_.area(), batch));
    return child_.run(batch);
  }

  /// Once nobody needs a folder or an executable through them any more.
  Result<void> drop_descriptors() {
    if (image_.descriptors_of >= 0) return {};
    SyscallBatch batch;
    drop_inherited(base_, batch);
    for (const auto& [fd, lock] : image_.locks) take_posix_locks(fd, {lock}, child_.area(), batch);
    return child_.run(batch);
  }

  Result<void> set_threads() {
    RestorerArea& area = child_.area();
    CKPT_TRY(hear_of_children());
    CKPT_TRY(create_threads(image_, child_));
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
    for (size_t i = 0; i < batches.size(); ++i) {
      const store::MemoryPolicy& policy = image_.threads[i].policy;
      if (policy.mode != 0) set_thread_policy(policy, area, batches[i]);
    }
    install_own_filters(image_.seccomp, area, batches);
    CKPT_TRY(set_credentials(image_, area, batches));
    CKPT_TRY(run_in_threads(image_, batches, child_));
    CKPT_TRY(set_extended_registers(reader_, image_, child_));
    child_.leave_parent();
    ThreadBatches last(image_.threads.size());
    set_after_credentials(image_, last);
    set_timers(image_, area, last[0]);
    return run_in_threads(image_, last, child_);
  }

  /// Nothing runs by a batch after this.
  Result<void> finish() {
    CKPT_TRY(finish_trap_signal(image_, child_));
    CKPT_TRY(resume_sleeps(image_, child_, regs_));
    if (image_.memory_of < 0) CKPT_TRY(remove_scratch());
    CKPT_TRY(set_final_registers(image_, regs_));
    if (index_ != 0 && (image_.stopped || image_.wait_status != store::WaitStatus::kNone))
      return child_.stop_as_by_signal(image_.stop_signal, image_.wait_status == store::WaitStatus::kContinued);
    return {};
  }


  Result<void> release() {
    // The stopped root goes on being stopped: the signal is there before its first thread could run. So is one that was
    // waiting.
    const bool stops = (index_ == 0 && image_.stopped) || has_waiting_stop(image_);
    if (stops && ::kill(image_.pid, SIGSTOP) != 0)
      return sys_error(fmt::format("process {}", image_.pid), "cannot be stopped");
    return child_.release();
  }

 private:
  std::vector<int> sorted_pids() const {
    std::vector<int> out;
    for (const store::ProcessImage& process : tree_.processes) {
      if (!process.zombie) out.push_back(process.pid);
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  /// Children that were stopped have just been stopped again: what the process knew of that, it must not hear twice.
  Result<void> hear_of_children() {
    SyscallBatch batch;
    for (const store::ProcessImage& other : tree_.processes) {
      if (other.parent_pid != image_.pid || !other.stopped || other.wait_status != store::WaitStatus::kNone) continue;
      batch.add("wait for a stopped child", SYS_waitid, P_PID, other.pid, 0, WSTOPPED | WNOHANG | __WALL, 0);
    }
    return child_.run(batch);
  }

  /// The call that unmaps our code must be made by code of the process's own: the vdso has it, nearly always.
  Result<void> remove_scratch() {
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

  const store::ImageReader& reader_;
  const store::TreeImage& tree_;
  const store::ProcessImage& image_;
  int index_;
  Child& child_;
  const OpenedFiles& files_;
  const DescriptorPlan& descriptors_;
  const CgroupMounts& cgroup_mounts_;
  int base_, spare_;
  ProgressSink& progress_;
  MemoryPlan plan_;
  std::vector<size_t> blocks_;  ///< that are filled
  uint64_t moved_pages_ = 0;    ///< that come from CommonMemory
  Userfault userfault_;
  std::vector<store::Registers> regs_;
};

class WholeTree final : public Rebuild {
 public:
  WholeTree(store::ImageReader& image, const Options& options, ProgressSink& progress)
      : reader_(image),
        image_(image.manifest().tree),
        options_(options),
        progress_(progress),
        tree_(image_, session_terminals_, progress) {}

  Result<void> check() {
    CKPT_TRY(validate(image_));
    if (!options_.lazy) CKPT_TRY(validate_pages(image_, reader_.blocks()));
    CKPT_TRY_ASSIGN(inherited_, Inherited::create(image_));
    Reasons reasons;
    check_host(reader_.manifest().host, image_, reasons);
    check_numbers(image_, reasons);
    if (auto possible = check_credentials(image_); !possible) reasons.add(possible.error());
    check_plan(image_, reasons);
    check_huge_pages(image_, reasons);
    if (options_.external.pipes == state::ExternalPipes::kNull) check_external(image_, options_.external, reasons);
    if (auto possible = check_io_urings(image_); !possible) reasons.add(possible.error());
    if (options_.dry_run) check_places(image_, reasons);
    if (options_.dry_run) check_ipc(image_.ipc, reasons);
    else ipc_.make(image_.ipc, reasons);
    files_ = open_files(image_, {options_.allow_changed, options_.dry_run}, *inherited_, reasons, progress_);
    files_.shared_memory = make_shared_memory(image_, *inherited_, reasons);
    descriptors_ = make_descriptors(reader_, files_, {options_.external, options_.dry_run}, *inherited_, reasons);
    CKPT_TRY(reasons.verdict(reader_.path().string()));
    phase("check");
    totals_.pid = image_.root().pid;
    totals_.processes = image_.processes.size();
    for (const auto& process : image_.processes) {
      totals_.threads += process.threads.size();
      totals_.mappings += process.maps.size();
    }
    totals_.descriptors = image_.descriptors.size();
    return {};
  }

  Result<void> build(const Cancel& cancel) override {
    CKPT_TRY(load_pages());
    CKPT_TRY_ASSIGN(area_, RestorerArea::create(ranges_of(image_), has_seed()));
    CKPT_TRY(ipc_.set_back());
    if (!options_.lazy || has_contents()) CKPT_TRY(fill_shared(cancel));
    CKPT_TRY(add_sockets_and_queues(reader_, *inherited_, progress_, sockets_, descriptors_));
    CKPT_TRY(open_session_terminals());
    CKPT_TRY(keep_user_namespace());
    CKPT_TRY(add_io_urings(reader_, *inherited_, files_, descriptors_));
    if (!image_.aio_contexts.empty()) {
      CKPT_TRY_ASSIGN(files_.empty, keep_empty_file(*inherited_));
    }
    CKPT_TRY(add_watches(image_, *inherited_, descriptors_));
    // A process that wants a signal at its parent's end would get it when a detached ckpt ends.
    bool orphan = hears_of_parents_end(image_.root()) && !options_.parent_stays;
    CKPT_TRY_ASSIGN(cgroup_mounts_, CgroupMounts::find());
    cgroup_mounts_.rearrange(options_.cgroups, image_.root().cgroups);
    // Memory that comes in by faults has no pages yet that could be shared.
    if (!options_.lazy)
      tree_.before_children([&](size_t process, Child& child) { return share_with_children(process, child, cancel); });
    CKPT_TRY(tree_.make(*area_, options_.sibling ? Child::Parent::kCallers
                                : orphan         ? Child::Parent::kStandIn
                                                 : Child::Parent::kCkpt));
    for (size_t i = 0; i < image_.processes.size(); ++i) {
      if (image_.processes[i].zombie) continue;
      builders_.emplace_back(reader_, i, *tree_.child(i), files_, descriptors_, cgroup_mounts_, inherited_->base(),
                             inherited_->end(), progress_);
    }
    CKPT_TRY(each(&ProcessBuilder::join_groups));
    phase("create");
    if (has_polled_rings(image_)) CKPT_TRY(step_over_numbers(image_));
    CKPT_TRY(each(&ProcessBuilder::place));
    for (ProcessBuilder& builder : builders_) CKPT_TRY(builder.map(options_.lazy, options_.common));
    if (options_.lazy) CKPT_TRY(start_lazy_pages());
    CKPT_TRY(seal_after_mapping(image_, files_.shared_memory));
    phase("map");
    for (ProcessBuilder& builder : builders_) {
      CKPT_TRY_ASSIGN(FillTotals filled, builder.fill(cancel));
      totals_.pages += filled.pages, totals_.bytes += filled.bytes;
    }
    phase("fill");
    CKPT_TRY(each(&ProcessBuilder::set_process_state));
    CKPT_TRY(each(&ProcessBuilder::claim));
    CKPT_TRY(each(&ProcessBuilder::adjust));
    CKPT_TRY(each(&ProcessBuilder::finish_claims));
    for (ProcessBuilder& builder : builders_) CKPT_TRY(builder.enter_user_namespace(user_namespace_));
    CKPT_TRY(each(&ProcessBuilder::drop_descriptors));
    CKPT_TRY(tree_.end_zombies());
    // Children first: the SIGCHLDs that building them has caused are discarded when their parents' threads are set. And
    // those that share memory before its owner, who takes the restorer area away.
    for (auto builder = builders_.rbegin(); builder != builders_.rend(); ++builder) {
      CKPT_TRY(builder->set_threads());
      CKPT_TRY(builder->finish());
    }
    if (area_->overflowed())
      return fail(Code::kNoRoom, fmt::format("process {}", image_.root().pid),
                  "its description is too large to rebuild");
    phase("state");
    return cancel.check();
  }

  Result<void> let_packets_pass() override {
    if (image_.packet_filter.empty() || std::exchange(packets_pass_, true)) return {};
    CKPT_TRY_ASSIGN(bool there, proc::remove_packet_filter(image_.packet_filter));
    if (!there) progress_.note("the packet filter of the dump is gone: peers may have given up their connections");
    return {};
  }

  Result<void> settle() override {
    if (std::exchange(settled_, true)) return {};
    CKPT_TRY(ipc_.keep());
    CKPT_TRY(state::write_late_ipc_limit());
    CKPT_TRY(arm_timer_descriptors(descriptors_, progress_));
    CKPT_TRY(let_packets_pass());
    return sockets_.release(progress_);
  }

  std::vector<Built> built() const override {
    std::vector<Built> out;
    for (const ProcessBuilder& builder : builders_) out.push_back({builder.child().pid(), builder.child().threads()});
    return out;
  }

  Result<void> release() override {
    if (lazy_pages_) CKPT_TRY(lazy_pages_->await());
    CKPT_TRY(settle());
    CKPT_TRY(release_all());
    tree_.released();
    if (lazy_pages_) lazy_pages_->released();
    inherited_.reset();  // or ckpt would keep the processes' pipes open
    return {};
  }

  const Totals& totals() const override { return totals_; }

 private:
  /// All of them, or none is left: those that run already are ended where a later one cannot be let go.
  Result<void> release_all() {
    for (auto builder = builders_.rbegin(); builder != builders_.rend(); ++builder) {
      Result<void> released = builder->release();
      if (released) continue;
      for (auto runs = builders_.rbegin(); runs != builder; ++runs) ::kill(runs->child().pid(), SIGKILL);
      return released;
    }
    return {};
  }

  void phase(const char* name) { totals_.phases_us.emplace_back(name, trace::phase(watch_, name)); }

  Result<void> each(Result<void> (ProcessBuilder::*step)()) {
    for (ProcessBuilder& builder : builders_) CKPT_TRY((builder.*step)());
    return {};
  }

  /// What the process's children have in common with it or with each other, put into its memory before they are made.
  Result<void> share_with_children(size_t process, Child& child, const Cancel& cancel) {
    trace::Span span("share");
    std::optional<HeldMemory> memory = memory_to_share(reader_, process);
    if (!memory) return {};
    const store::ProcessImage& image = image_.processes[process];
    join_cgroups(cgroup_mounts_, image.pid, image.cgroups, null_progress());  // whoever forks pays for what is shared
    MemoryPlan plan = plan_writable_memory(memory->layout);
    if (child.held() != nullptr) CKPT_TRY(inherit(reader_, memory->layout, memory->blocks, *child.held(), plan));
    if (options_.common != nullptr) options_.common->offer(process, true, memory->layout, plan);
    Userfault userfault;
    if (plan.needs_userfault()) {
      auto made = make_userfault(child, false);
      if (made) userfault = std::move(*made);
      else plan.write_instead();
    }
    CKPT_TRY(lay_out_memory(image_, memory->layout, plan, files_, child));
    if (child.held() != nullptr)
      CKPT_TRY(drop_pages(pages_to_drop(reader_, memory->layout, memory->blocks, *child.held(), plan), child));
    CKPT_TRY(watch_mappings(memory->layout, plan, Supply::kCopy, userfault.fd.get()));
    CKPT_TRY(fill_memory(reader_, {memory->layout, plan, memory->blocks, child.held(), child.pid(), userfault.fd.get()},
                         null_progress(), cancel));
    child.hold(std::move(*memory));
    return {};
  }

  /// A terminal becomes a session's when its leader asks for it, through any descriptor of the slave.
  Result<void> open_session_terminals() {
    for (const store::Terminal& terminal : image_.terminals) {
      if (terminal.session == 0 || !terminal.master_open) continue;
      const std::string name = fmt::format("/dev/pts/{}", terminal.index);
      UniqueFd slave(state::open_in_tree(name.c_str(), O_RDWR | O_NOCTTY | O_NONBLOCK));
      if (!slave) return sys_error(-slave.get(), name, "cannot be opened");
      CKPT_TRY_ASSIGN(session_terminals_[terminal.session], inherited_->keep(std::move(slave), name));
    }
    return {};
  }

  Result<void> keep_user_namespace() {
    const state::TreeUser* user = state::tree_user();
    if (user == nullptr || user->birth) return {};
    UniqueFd handle(::fcntl(user->handle.get(), F_DUPFD_CLOEXEC, 3));
    if (!handle) return sys_error("user namespace", "cannot be held on to");
    CKPT_TRY_ASSIGN(user_namespace_, inherited_->keep(std::move(handle), "user namespace"));
    return {};
  }

  /// Whether there is memory that ckpt itself fills before the processes are made.
  bool has_contents() const {
    auto is_ghost = [](const store::FileIdentity& file) { return file.space >= 0; };
    return !image_.shared_memory.empty() || !image_.namespaces.mounts.mounts.empty() ||
           std::any_of(image_.files.begin(), image_.files.end(), is_ghost);
  }

  /// What no process can do without for a moment; the lazy-pages daemon loads the rest once they run.
  std::vector<store::AddressRange> needed_at_once() const {
    std::vector<store::AddressRange> out;
    auto add = [&](int space, uint64_t first, uint64_t last) {
      out.push_back({store::space_base(space) + first, store::space_base(space) + last});
    };
    for (const store::ProcessImage& process : image_.processes) {
      if (process.zombie || process.memory_of >= 0) continue;
      for (const store::MemoryMap& map : process.maps) {
        if (!may_come_later(process, map)) add(process.space, map.start, map.end);
      }
    }
    for (const store::SharedMemory& memory : image_.shared_memory) {
      if (memory.space >= 0) add(memory.space, 0, memory.size);
    }
    for (const store::FileIdentity& file : image_.files) {
      if (file.space >= 0) add(file.space, 0, file.size);
    }
    for (const store::MountedFilesystem& filesystem : image_.namespaces.mounts.filesystems) {
      for (const store::MemoryFile& file : filesystem.files) {
        if (file.space >= 0) add(file.space, 0, file.size);
      }
    }
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return out;
  }

  Result<void> load_pages() {
    if (!options_.lazy) return {};  // `check` has seen them
    CKPT_TRY(reader_.load_sparsely());
    CKPT_TRY(reader_.load_pages_of(needed_at_once()));
    return validate_pages(image_, reader_.blocks());
  }

  Result<void> start_lazy_pages() {
    std::vector<PagedMemory> memories;
    for (const ProcessBuilder& builder : builders_) {
      if (auto memory = builder.paged()) memories.push_back(std::move(*memory));
    }
    if (memories.empty()) return {};
    for (const PagedMemory& memory : memories) {
      for (const Range& range : memory.ranges) totals_.bytes_on_demand += range.second - range.first;
    }
    CKPT_TRY_ASSIGN(LazyPagesLog log, LazyPagesLog::open(options_.lazy_log, options_.parent_stays));
    CKPT_TRY(step_over_numbers(image_));
    CKPT_TRY_ASSIGN(lazy_pages_, LazyPagesDaemon::start(reader_, std::move(memories), std::move(log)));
    return {};
  }

  /// The contents of deleted files and shared memory, by ckpt itself.
  Result<void> fill_shared(const Cancel& cancel) {
    uint64_t bytes = 0;
    for (const auto& block : reader_.blocks())
      bytes += static_cast<uint64_t>(__builtin_popcount(block.data_mask)) * store::kPageSize;
    progress_.begin("fill", bytes);
    CKPT_TRY(fill_ghosts(reader_, files_, progress_, cancel));
    CKPT_TRY(fill_memory_files(reader_, progress_, cancel));
    files_.ghosts.clear();  // an executable must not be open for writing
    for (size_t i = 0; i < image_.shared_memory.size(); ++i) {
      const store::SharedMemory& memory = image_.shared_memory[i];
      int fd = files_.shared_memory[i].writable;
      UniqueFd segment;
      for (const store::SharedSegment& own : image_.ipc.segments) {
        if (memory.kind != store::SharedMemory::Kind::kSystemV || own.identity.id != memory.id) continue;
        CKPT_TRY_ASSIGN(segment, open_to_fill(own));
        fd = segment.get();
      }
      CKPT_TRY_ASSIGN(FillTotals filled, fill_file(reader_, memory.space, memory.size, fd, progress_, cancel,
                                                   memory.huge_page));
      totals_.pages += filled.pages, totals_.bytes += filled.bytes;
    }
    return seal_before_mapping(image_, files_.shared_memory);
  }

  store::ImageReader& reader_;
  const store::TreeImage& image_;
  Options options_;
  ProgressSink& progress_;
  Stopwatch watch_;
  std::optional<Inherited> inherited_;
  OpenedFiles files_;
  DescriptorPlan descriptors_;
  Sockets sockets_;
  IpcObjects ipc_;
  CgroupMounts cgroup_mounts_;
  int user_namespace_ = -1;  ///< an inherited descriptor
  std::map<int, int> session_terminals_;  ///< an inherited descriptor of the slave, by session
  std::optional<RestorerArea> area_;
  Tree tree_;  ///< after the restorer area: it goes first
  std::deque<ProcessBuilder> builders_;
  std::optional<LazyPagesDaemon> lazy_pages_;
  bool settled_ = false, packets_pass_ = false;
  Totals totals_;
};

}  // namespace

Result<std::unique_ptr<Rebuild>> Rebuild::prepare(store::ImageReader& image, const Options& options,
                                                  ProgressSink& progress) {
  auto out = std::make_unique<WholeTree>(image, options, progress);
  CKPT_TRY(out->check());
  return std::unique_ptr<Rebuild>(std::move(out));
}

}  // namespace ckpt::restore
