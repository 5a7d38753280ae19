#include "lib/rebuild/rebuild.h"

#include <fmt/format.h>
#include <sys/syscall.h>

#include <csignal>
#include <optional>

#include "lib/base/clock.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/procfs.h"
#include "lib/rebuild/attributes.h"
#include "lib/rebuild/child.h"
#include "lib/rebuild/credentials.h"
#include "lib/rebuild/descriptors.h"
#include "lib/rebuild/files.h"
#include "lib/rebuild/host_check.h"
#include "lib/rebuild/inherited.h"
#include "lib/rebuild/memory.h"
#include "lib/rebuild/shared_memory.h"
#include "lib/rebuild/signals.h"
#include "lib/rebuild/threads.h"
#include "lib/rebuild/validate.h"

namespace ckpt::rebuild {

namespace {

class OneProcess final : public Rebuild {
 public:
  OneProcess(const store::ImageReader& image, const Options& options, ProgressSink& progress)
      : reader_(image), image_(image.manifest().process), options_(options), progress_(progress) {}

  Result<void> check() {
    CKPT_TRY(validate(image_, reader_.blocks()));
    CKPT_TRY_ASSIGN(inherited_, Inherited::create(image_));
    Reasons reasons;
    check_host(reader_.manifest().host, image_, reasons);
    check_numbers(image_, reasons);
    check_timers(image_, reasons);
    files_ = open_files(image_, *inherited_, reasons, progress_);
    files_.shared_objects = make_shared_objects(image_, *inherited_, reasons);
    descriptors_ = make_descriptors(reader_, files_, options_.shell_job, *inherited_, reasons);
    CKPT_TRY(reasons.verdict(reader_.path().string()));
    phase("check");
    totals_.pid = image_.pid;
    totals_.threads = image_.threads.size();
    totals_.mappings = image_.maps.size();
    totals_.descriptors = image_.descriptors.size();
    return {};
  }

  Result<void> build(const Cancel& cancel) override {
    CKPT_TRY_ASSIGN(scratch_, Scratch::create(ranges_of(image_)));
    // A process that wants a signal at its parent's end would get it when a detached ckpt ends.
    bool orphan = image_.parent_death_signal != 0 && !options_.parent_stays;
    CKPT_TRY_ASSIGN(Child child,
                    Child::create(image_.pid, *scratch_, orphan ? Child::Parent::kStandIn : Child::Parent::kCkpt));
    child_.emplace(std::move(child));
    phase("create");
    Script script;
    place_descriptors(descriptors_, inherited_->base(), script);
    CKPT_TRY(child_->run(script));
    CKPT_TRY(lay_out_memory(reader_, files_, *child_));
    phase("map");
    CKPT_TRY(fill_from_image(cancel));
    phase("fill");
    CKPT_TRY(set_process_state());
    CKPT_TRY(set_threads());
    phase("state");
    return cancel.check();
  }

  Result<void> release() override {
    CKPT_TRY(arm_timer_descriptors(descriptors_, progress_));
    // A stopped process goes on being stopped: the signal is there before the first thread could run.
    if (image_.stopped && ::kill(image_.pid, SIGSTOP) != 0)
      return sys_error(fmt::format("process {}", image_.pid), "cannot be stopped");
    CKPT_TRY(child_->release());
    inherited_.reset();  // or ckpt would keep the process's pipes open
    return {};
  }

  const Totals& totals() const override { return totals_; }

 private:
  void phase(const char* name) { totals_.phases_us.emplace_back(name, watch_.lap_us()); }

  Result<void> fill_from_image(const Cancel& cancel) {
    uint64_t bytes = 0;
    for (const auto& block : reader_.blocks())
      bytes += static_cast<uint64_t>(__builtin_popcount(block.data_mask)) * store::kPageSize;
    progress_.begin("fill", bytes);
    CKPT_TRY_ASSIGN(FillTotals filled, fill_memory(reader_, image_.pid, progress_, cancel));
    totals_.pages = filled.pages;
    totals_.bytes = filled.bytes;
    return {};
  }

  Result<void> set_process_state() {
    Script script;
    protect_memory(reader_, script);
    set_identity(image_, files_, *child_, script);
    connect_descriptors(image_, *child_, script);
    drop_inherited(inherited_->base(), script);
    CKPT_TRY(child_->run(script));
    set_through_proc(image_, progress_);
    return {};
  }

  Result<void> set_threads() {
    Scratch& scratch = child_->scratch();
    std::vector<store::Registers> regs;
    CKPT_TRY(create_threads(image_, *child_));
    CKPT_TRY(set_thread_state(image_, *child_, regs, progress_));
    Script leader;
    set_actions(image_, scratch, leader);
    set_limits(image_, *child_, leader, progress_);
    CKPT_TRY(child_->run(leader));
    ThreadScripts scripts(image_.threads.size());
    queue_signals(image_, scratch, scripts);
    CKPT_TRY(set_credentials(image_, scratch, scripts));
    CKPT_TRY(run_in_threads(image_, scripts, *child_));
    CKPT_TRY(set_extended_registers(reader_, *child_));
    Script last;
    child_->leave_parent();
    set_after_credentials(image_, last);
    set_timers(image_, scratch, last);
    CKPT_TRY(child_->run(last));
    return finish(regs);
  }

  Result<void> finish(std::vector<store::Registers>& regs) {
    CKPT_TRY(finish_trap_signal(image_, *child_));
    CKPT_TRY(resume_sleeps(image_, *child_, regs));
    if (scratch_->overflowed())
      return fail(Code::kNoRoom, fmt::format("process {}", image_.pid), "its description is too large to rebuild");
    // The call that unmaps our code must be made by code of the process's own: the vdso has it, nearly always.
    CKPT_TRY_ASSIGN(std::vector<proc::Vma> maps, proc::read_maps(image_.pid, false));
    std::erase_if(maps, [&](const proc::Vma& vma) {
      return vma.start >= scratch_->address() && vma.end <= scratch_->address() + Scratch::kSize;
    });
    CKPT_TRY_ASSIGN(proc::RemoteAddress instruction, proc::find_syscall_instruction(image_.pid, maps));
    Call unmap{SYS_munmap, 0, {scratch_->address(), Scratch::kSize}, 0};
    CKPT_TRY_ASSIGN(int64_t result, child_->call_once(image_.pid, raw(instruction), unmap));
    if (result != 0) return sys_error(static_cast<int>(-result), "", "cannot remove what ckpt put into the process");
    return set_final_registers(image_, regs);
  }

  const store::ImageReader& reader_;
  const store::ProcessImage& image_;
  Options options_;
  ProgressSink& progress_;
  Stopwatch watch_;
  std::optional<Inherited> inherited_;
  OpenedFiles files_;
  DescriptorPlan descriptors_;
  std::optional<Scratch> scratch_;
  std::optional<Child> child_;  ///< after the scratch: it goes first
  Totals totals_;
};

}  // namespace

Result<std::unique_ptr<Rebuild>> Rebuild::prepare(const store::ImageReader& image, const Options& options,
                                                  ProgressSink& progress) {
  auto out = std::make_unique<OneProcess>(image, options, progress);
  CKPT_TRY(out->check());
  return std::unique_ptr<Rebuild>(std::move(out));
}

}  // namespace ckpt::rebuild
