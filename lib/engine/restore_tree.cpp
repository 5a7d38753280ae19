#include "lib/engine/restore_tree.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <map>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/trace.h"
#include "lib/engine/process_builder.h"
#include "lib/memory/common.h"
#include "lib/memory/fill.h"
#include "lib/memory/lazy/daemon.h"
#include "lib/memory/sharing.h"
#include "lib/proc/packet_filter.h"
#include "lib/state/aio/restore.h"
#include "lib/state/attributes/restore.h"
#include "lib/state/cgroups/restore.h"
#include "lib/state/credentials/restore.h"
#include "lib/state/descriptors/inherited.h"
#include "lib/state/descriptors/restore.h"
#include "lib/state/external/restore.h"
#include "lib/state/files/put_back.h"
#include "lib/state/files/restore.h"
#include "lib/state/files/tree_root.h"
#include "lib/state/host_check.h"
#include "lib/state/huge_pages/restore.h"
#include "lib/state/io_uring/restore.h"
#include "lib/state/labels/restore.h"
#include "lib/state/mappings/restore.h"
#include "lib/state/mounts/inner_proc.h"
#include "lib/state/mounts/memory_files_restore.h"
#include "lib/state/namespaces/further.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/namespaces/pids.h"
#include "lib/state/namespaces/user.h"
#include "lib/state/plan_check.h"
#include "lib/state/shared_memory/restore.h"
#include "lib/state/system_v_ipc/restore.h"
#include "lib/state/tree/child.h"
#include "lib/state/tree/restore.h"
#include "lib/state/tree/seed.h"
#include "lib/state/validate.h"

namespace ckpt::restore {

namespace {

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
    if (!options_.drop_labels)
      labels_ = check_labels(image_, options_.label_profile, options_.may_change_labels, reasons, progress_);
    check_huge_pages(image_, reasons);
    if (options_.external.pipes == state::ExternalPipes::kNull) check_external(image_, options_.external, reasons);
    if (auto possible = check_io_urings(image_); !possible) reasons.add(possible.error());
    if (options_.dry_run) check_places(image_, reasons);
    if (options_.dry_run) check_ipc(image_.ipc, reasons);
    else ipc_.make(image_.ipc, reasons);
    const FileOptions how{options_.allow_changed, options_.dry_run, options_.force_files};
    files_ = open_files(image_, how, *inherited_, reasons, progress_);
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
    CKPT_TRY(check_unwritable(reader_, files_.contents, cancel));
    CKPT_TRY_ASSIGN(area_, RestorerArea::create(ranges_of(image_), has_seed()));
    CKPT_TRY(ipc_.set_back());
    if (!options_.lazy || has_contents()) CKPT_TRY(fill_shared(cancel));
    CKPT_TRY(add_sockets_and_queues(reader_, *inherited_, progress_, sockets_, descriptors_));
    CKPT_TRY(open_session_terminals());
    CKPT_TRY(keep_user_namespace());
    CKPT_TRY(keep_further_namespaces());
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
    CKPT_TRY(show_inner_processes());
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
    for (ProcessBuilder& builder : builders_) CKPT_TRY(builder.enter_namespaces(further_, true));
    CKPT_TRY(each(&ProcessBuilder::set_process_state));
    CKPT_TRY(each(&ProcessBuilder::claim));
    CKPT_TRY(each(&ProcessBuilder::adjust));
    CKPT_TRY(each(&ProcessBuilder::finish_claims));
    for (ProcessBuilder& builder : builders_) CKPT_TRY(builder.enter_namespaces(further_, false));
    for (ProcessBuilder& builder : builders_) CKPT_TRY(builder.enter_user_namespace(user_namespace_));
    CKPT_TRY(each(&ProcessBuilder::drop_descriptors));
    CKPT_TRY(tree_.end_zombies());
    // Children first: the SIGCHLDs that building them has caused are discarded when their parents' threads are set. And
    // those that share memory before its owner, who takes the restorer area away.
    for (auto builder = builders_.rbegin(); builder != builders_.rend(); ++builder) {
      CKPT_TRY(builder->set_threads(labels_));
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

  Result<size_t> put_back_files(const Cancel& cancel) override {
    if (lazy_pages_) CKPT_TRY(lazy_pages_->await());
    auto changed = put_back(reader_, files_.contents, progress_, cancel);
    files_.contents.clear();
    return changed;
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

  /// The /proc of further pid namespaces, which somebody there opens.
  Result<void> show_inner_processes() {
    for (size_t i = 0; i < image_.namespaces.further.size(); ++i) {
      const store::Mounts& mounts = image_.namespaces.further[i].mounts;
      CKPT_TRY(put_inner_proc(mounts, state::further_handle(static_cast<int>(i)), [&](int pid_namespace) {
        return tree_.child(state::first_in(image_, pid_namespace));
      }));
    }
    return {};
  }

  Result<void> keep_further_namespaces() {
    for (size_t i = 0; i < image_.namespaces.further.size(); ++i) {
      further_.push_back(-1);
      if (image_.namespaces.further[i].kind == "pid") continue;  // its first process makes it
      CKPT_TRY_ASSIGN(further_.back(), inherited_->keep_copy(state::further_handle(static_cast<int>(i)),
                                                            image_.namespaces.further[i].kind + " namespace"));
    }
    return {};
  }

  /// Whether there is memory that ckpt itself fills before the processes are made.
  bool has_contents() const {
    auto is_ghost = [](const store::FileIdentity& file) { return file.space >= 0; };
    return !image_.shared_memory.empty() || !filesystems_of(image_.namespaces).empty() ||
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
    for (const store::MountedFilesystem* filesystem : filesystems_of(image_.namespaces)) {
      for (const store::MemoryFile& file : filesystem->files) {
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
    CKPT_TRY_ASSIGN(LazyPagesLog log,
                    LazyPagesLog::open(options_.lazy_log, options_.parent_stays, options_.lazy_fate));
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
  LabelChanges labels_;
  CgroupMounts cgroup_mounts_;
  int user_namespace_ = -1;  ///< an inherited descriptor
  std::vector<int> further_;  ///< inherited descriptors, parallel to Namespaces::further
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
