// One pre-dump or dump, from the first look at the tree to the commit of its image: the steps, and what they hand to
// each other. Which steps, in which order, is in dump.cpp; the rounds of copying ahead are in capture_ahead.cpp, what
// is done once the tree runs again in capture_finish.cpp.
#pragma once

#include <map>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/worker_pool.h"
#include "lib/engine/device_hold.h"
#include "lib/engine/dump.h"
#include "lib/engine/estimate.h"
#include "lib/engine/owned_memory.h"
#include "lib/engine/tidier.h"
#include "lib/memory/copy.h"
#include "lib/memory/keeper.h"
#include "lib/memory/page_plan.h"
#include "lib/memory/precopy.h"
#include "lib/memory/snapshot.h"
#include "lib/proc/frozen_tree.h"
#include "lib/proc/usage.h"
#include "lib/state/inventory.h"
#include "lib/state/sockets/connections.h"

namespace ckpt::engine {

/// What belongs to one process of the tree while it is captured.
struct Subject {
  int pid = 0;
  capture::ProcessKey key;
  proc::Gadgets gadgets;
  bool has_gadgets = false;
  uint64_t private_pages = 0;  ///< held shortly before the frozen window
  bool pinned = false;   ///< Status::has_pinned_pages, when it was looked at last
  bool tracked = false;  ///< what it wrote since the parent image, or since the last round, is known
  bool armed = false;    ///< what it writes from this image on will be known
  std::optional<capture::CaptureLock> lock;
  std::optional<capture::Keeper> keeper;
  UniqueFd userfault;
  std::optional<capture::Snapshot> snapshot;
  std::vector<std::vector<std::byte>> xstates;
  std::vector<proc::PageRegion> changes;  ///< of a tracked process, up to the instant of the image
  capture::PagePlan plan;
  proc::Usage usage;      ///< when its capture began
};

/// Members are in the order in which they come to be; the destructors let go in the reverse one.
class Capture {
 public:
  enum class Verb { kPreDump, kDump };
  Capture(Verb verb, const DumpOptions& options, ProgressSink& progress, const Cancel& cancel)
      : verb_(verb),
        options_(options),
        progress_(progress),
        cancel_(cancel),
        owned_(options.gpu, progress, cancel),
        devices_(options.gpu) {}

  Result<DumpReport> run();
  Result<DumpEstimate> estimate();

 private:
  Result<DumpReport> take_image();
  /// What ends must be restorable by whoever ends it.
  Result<void> check_end() const;

  // Before anything stands still.
  /// `just_before`: a look of a moment ago, or null.
  Result<void> look_first(const capture::Inventory* just_before = nullptr);
  Result<void> find_devices();
  Result<void> copy_devices_ahead();
  Result<void> stop_devices(OwnedMemory::Copy copy);
  Result<void> give_devices_back();
  void count_devices();
  Subject& subject(const capture::Member& member);
  Result<void> choose_parent();
  Result<void> make_writer();
  Result<void> open_image();
  void spawn_keepers();
  void take_over_tracking(bool all);
  Result<void> lock_processes();
  Result<void> clear_leftovers();

  // Copying ahead: capture_ahead.cpp.
  Result<void> copy_ahead();
  Result<void> start_tracking(bool all);
  Result<void> make_running_tracker(const capture::Member& member, Subject& subject);
  Result<void> run_rounds();
  Result<void> run_round();
  Result<void> barrier();
  uint64_t private_bytes() const;
  uint64_t bytes_ahead() const;
  uint64_t contents_bytes() const;
  uint64_t fork_us() const;
  uint64_t copying_us(uint64_t bytes) const;
  bool rounds_are_done(uint64_t bytes, uint64_t scan_us) const;
  Result<void> prepare_window();
  uint64_t written_since_scan() const;
  Result<void> catch_up();

  // The frozen window, and what stops GPUs around it.
  Result<void> take_moment(OwnedMemory::Copy copy);
  Result<void> copy_devices_behind();
  Result<void> forget_moment();
  Result<void> freeze();
  Result<void> take_final_inventory(bool hold_connections);
  Result<void> stop_at_a_good_moment();
  std::vector<const store::TreeImage*> earlier_trees() const;
  Result<void> describe();
  Result<void> make_copies();
  Result<void> make_tracker(size_t process, Subject& subject, proc::BorrowedThread& thread);
  Result<void> make_snapshot(Subject& subject, proc::BorrowedThread& thread);
  Result<void> scan();
  Result<void> scan_process(store::ProcessImage& image, Subject& subject, WorkerPool* pool);
  Result<void> add_missed(const proc::Pagemap& pagemap, Subject& subject);
  Result<void> scan_contents();
  std::vector<capture::Part> frozen_parts() const;
  Result<void> copy_frozen();
  void end_of_frozen_window();
  Result<void> let_run();

  // After it: capture_finish.cpp.
  Result<void> copy_rest();
  Result<void> plan_snapshot(store::ProcessImage& image, Subject& subject);
  uint64_t faults() const;
  Result<void> halt(std::vector<proc::FrozenProcess>& halted);
  Result<void> copy_within_bounds(const std::vector<capture::Part>& parts);
  Result<void> finish_snapshots();
  void count_usage();
  Result<void> commit();
  Result<void> check_advice();
  Result<void> rehearse_image(const std::filesystem::path& dir);
  void keep_tracking();
  Result<void> act(const char* action);
  Result<DumpReport> finish_tree();
  Result<void> end_target();
  DumpReport report(std::string target_state);
  bool any_tracked() const;

  void phase(const char* name);
  /// Runs `step(image, subject)` for every process with a memory of its own.
  template <class Step>
  Result<void> each_memory(Step step) {
    for (store::ProcessImage& image : manifest_.tree.processes) {
      if (!image.zombie && image.memory_of < 0) CKPT_TRY(step(image, subjects_[image.pid]));
    }
    return {};
  }
  capture::CopyOptions copy_options() const { return {options_.workers, &progress_, &cancel_}; }
  WorkerPool* pool() { return pool_ ? &*pool_ : nullptr; }
  capture::InventoryOptions inventory_options(const capture::Inventory* earlier) {
    const bool ends = verb_ == Verb::kDump && options_.after != DumpOptions::After::kLeaveRunning;
    return {options_.shell_job,
            options_.ghost_limit,
            options_.sockets,
            earlier == nullptr && options_.gpu.policy != GpuOptions::Policy::kOff,
            ends,
            earlier != nullptr,
            earlier,
            nullptr,
            earlier != nullptr ? pool() : nullptr};
  }

  const Verb verb_;
  const DumpOptions& options_;
  ProgressSink& progress_;
  const Cancel& cancel_;

  Stopwatch watch_;
  bool runs_on_ = false;        ///< the tree goes on afterwards
  bool keeps_tracking_ = false; ///< keepers will hold the write tracking for the next image
  bool ends_target_ = false;
  std::vector<capture::Member> members_;
  capture::Inventory before_;   ///< taken while the tree ran
  Result<bool> advice_ = true;  ///< capture::advice_unchanged, once advice_watch_ is through
  std::optional<WorkerPool> advice_watch_;
  capture::Inventory now_;      ///< taken in the frozen window; its `image` is in manifest_
  std::filesystem::path parent_;
  std::optional<store::Manifest> parent_manifest_;
  uint64_t looked_at_us_ = 0;   ///< when the first look began
  store::TreeImage numbered_;   ///< of the first look, with the memory spaces that the rounds use
  std::unique_ptr<store::ImageWriter> writer_;
  std::optional<Tidier> tidier_;   ///< before what it is there for: let go last
  std::optional<capture::Precopy> ahead_;
  capture::Precopy::Dirty dirty_;  ///< what was left after the last round
  uint64_t last_round_us_ = 0, scanned_at_us_ = 0;  ///< when the last round began; when dirty_ was found
  std::optional<WorkerPool> pool_;  ///< for the frozen window: its threads are there before it
  std::optional<capture::Staging> staging_;
  bool staged_ = false;
  bool wants_snapshot_ = false;
  store::Manifest manifest_;
  capture::HeldConnections connections_;
  std::vector<capture::Part> contents_;  ///< shared memory and deleted files
  std::vector<capture::Part> copied_;    ///< what the frozen window copied
  std::map<int, Subject> subjects_;  ///< by pid. Before frozen_: a snapshot's end stops the released target once more
  std::optional<proc::FrozenTree> frozen_;
  std::map<int, proc::Scratch> scratches_;  ///< by pid; after frozen_: they are removed while the processes stand still
  OwnedMemory owned_;   ///< likewise
  uint64_t held_since_us_ = 0;  ///< GPU work waits; 0: it does not
  DeviceHold devices_;  ///< given back by `run` whatever happens
};

}  // namespace ckpt::engine
