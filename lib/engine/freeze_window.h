// The freeze window: the tree is frozen, collected, scanned and copied, and goes on or stays as it is.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/worker_pool.h"
#include "lib/engine/capture.h"
#include "lib/memory/copy.h"
#include "lib/memory/page_plan.h"
#include "lib/memory/snapshot.h"
#include "lib/proc/borrowed_thread.h"
#include "lib/proc/frozen_tree.h"
#include "lib/proc/pagemap.h"
#include "lib/state/inventory.h"
#include "lib/state/landlock/capture.h"

namespace ckpt::engine {

/// What the freeze window took of one process.
struct FrozenState {
  std::vector<std::vector<std::byte>> xstates;  ///< of its threads
  std::optional<capture::Snapshot> snapshot;
  capture::PagePlan plan;
  bool armed = false;  ///< what it writes from this image on will be known
};

/// The steps are called in their order. Nothing is in the image before `copy`, and where the staging room holds what
/// was copied not before `write`: until then another window may take this one's place.
class FreezeWindow {
 public:
  explicit FreezeWindow(Capture& capture) : capture_(capture), context_(capture.context) {}
  FreezeWindow(const FreezeWindow&) = delete;
  FreezeWindow& operator=(const FreezeWindow&) = delete;
  /// The tree goes on, and then the snapshots end.
  ~FreezeWindow();

  /// Freezes and collects the tree, at an instant at which nothing stands in the way of an image.
  Result<void> freeze();
  /// What only the threads themselves can tell; then all of it is in the manifest.
  Result<void> describe();
  /// Snapshots and write tracking, as far as they are wanted, and the end of what was borrowed.
  Result<void> make_copies();
  /// Which pages are to be copied.
  Result<void> scan();
  /// Into the staging room if they fit, else straight through to the image.
  Result<void> copy();
  /// Reads the pages that are to be validated of processes without a snapshot.
  Result<void> sample();
  /// The tree goes on if it is to go on.
  Result<void> end();
  /// Asks for what a stop need not wait for; the answer comes while the image is written.
  void ask_later();

  /// Gives back whatever the processes miss and lets them go, wherever the window stands.
  Result<void> let_go();
  /// SIGKILL to all of the tree.
  Result<void> kill() { return tree_->kill(); }
  /// Once the tree goes on: what the staging room holds.
  Result<void> write();
  Result<void> finish_snapshots();

  const capture::Inventory& collected() const { return collected_; }
  /// CLOCK_MONOTONIC microseconds of the first stop.
  uint64_t frozen_at_us() const { return tree_->frozen_at_us(); }
  /// What `copy` copied.
  const std::vector<capture::SpaceBlocks>& copied() const { return copied_; }
  FrozenState& of(int pid) { return states_[pid]; }
  std::map<int, FrozenState>& states() { return states_; }

 private:
  bool asks_at_once() const;
  Result<void> freeze_once();
  Result<void> collect();
  /// The tree runs; those that were frozen are no more.
  void release();
  struct Process {
    store::ProcessImage& image;
    Tracee& tracee;
    FrozenState& state;
  };
  Result<void> describe(size_t index);
  Result<void> make_tracker(size_t index, Tracee& tracee, proc::BorrowedThread& thread);
  Result<void> make_snapshot(const Tracee& tracee, proc::BorrowedThread& thread);
  Result<void> scan_process(const Process& process, WorkerPool* pool);
  void judge_tracking(const Process& process, bool can_scan);
  Result<void> plan_changes(const Process& process, const proc::Pagemap& pagemap, WorkerPool* pool);
  Result<void> scan_huge_pages();
  Result<void> scan_contents();
  std::vector<capture::SpaceBlocks> parts_to_copy() const;
  void note_end();
  Result<void> let_run();

  Capture& capture_;
  CaptureContext& context_;
  capture::Inventory collected_;          ///< its `image` is in the manifest
  std::map<int, FrozenState> states_;     ///< by pid
  std::vector<capture::SpaceBlocks> contents_;  ///< shared memory and deleted files
  std::vector<capture::SpaceBlocks> copied_;
  enum class Held { kNothing, kInStaging, kInImage } held_ = Held::kNothing;  ///< where `copied_` is
  std::optional<capture::Outsiders> outsiders_;
  std::optional<proc::FrozenTree> tree_;
  std::map<int, proc::ParasiteArea> areas_;  ///< by pid; none is left once the tree goes on
};

/// Calls `step(image)`, which returns Result<void>, for every process with a memory of its own.
template <class Step>
Result<void> each_memory(store::TreeImage& tree, Step step) {
  for (store::ProcessImage& image : tree.processes) {
    if (!image.zombie && image.memory_of < 0) CKPT_TRY(step(image));
  }
  return {};
}

}  // namespace ckpt::engine
