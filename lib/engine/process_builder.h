// One process of a tree that is restored, step by step; restore_tree.cpp says when each process takes which step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/memory/common.h"
#include "lib/memory/fill.h"
#include "lib/memory/lazy/daemon.h"
#include "lib/state/cgroups/restore.h"
#include "lib/state/descriptors/restore.h"
#include "lib/state/files/restore.h"
#include "lib/state/labels/change.h"
#include "lib/state/tree/child.h"
#include "lib/store/image.h"

namespace ckpt::restore {

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
  Result<void> join_groups();

  /// Its descriptors, under their numbers.
  Result<void> place();

  /// Its mappings, with what they inherit. `common`: of several copies side by side, or null.
  Result<void> map(bool lazy, const CommonMemory* common);

  /// What the lazy-pages daemon has to supply, if anything.
  std::optional<PagedMemory> paged() const;

  /// Their pages, but for those that come on demand.
  Result<FillTotals> fill(const Cancel& cancel);

  /// What the process has beside memory and threads; its mappings get their final protection.
  Result<void> set_process_state();

  /// What the kernel notes of the last user of a semaphore or a queue; then `finish_claims`, once all have claimed.
  Result<void> claim();
  Result<void> adjust();
  Result<void> finish_claims();

  /// The last that a process does with ckpt's own rights, while it has one thread and ckpt's descriptors.
  /// `further`: inherited descriptors, parallel to Namespaces::further. `mounts`: of those, or of all others.
  Result<void> enter_namespaces(const std::vector<int>& further, bool mounts);
  Result<void> enter_user_namespace(int handle);

  /// Once nobody needs a folder or an executable through them any more.
  Result<void> drop_descriptors();

  /// Makes its other threads, and gives each its state, signals, credentials, security label and timers.
  Result<void> set_threads(const LabelChanges& labels);

  /// Nothing runs by a batch after this.
  Result<void> finish();

  /// It runs from here on.
  Result<void> release();

 private:
  std::vector<int> sorted_pids() const;

  /// Children that were stopped have just been stopped again: what the process knew of that, it must not hear twice.
  Result<void> hear_of_children();

  /// The call that unmaps our code must be made by code of the process's own: the vdso has it, nearly always.
  Result<void> remove_scratch();

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

}  // namespace ckpt::restore
