// What is decided and made ready before the tree is frozen, so that it need not wait for it.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/base/result.h"
#include "lib/base/worker_pool.h"
#include "lib/engine/capture_context.h"
#include "lib/engine/precopy_loop.h"
#include "lib/engine/tracees.h"
#include "lib/memory/copy.h"

namespace ckpt::engine {

/// Asks whether the madvise flags of the mappings have stayed as they were collected: the kernel walks all page tables
/// for the answer, so beside other work. Its thread is there from the construction on.
class MadviseWatch {
 public:
  explicit MadviseWatch(const capture::Inventory& running) : running_(running) {}
  MadviseWatch(const MadviseWatch&) = delete;
  MadviseWatch& operator=(const MadviseWatch&) = delete;
  void ask();
  /// False: they have not, as far as the kernel tells. Waits for what was asked last.
  Result<bool> unchanged();

 private:
  const capture::Inventory& running_;
  Result<bool> answer_ = true;
  WorkerPool thread_{1};  ///< writes answer_
};

class FreezePlan {
 public:
  /// Of every process, instead of copying its memory in the freeze window: whichever keeps the tree frozen for less.
  enum class Copy { kNow, kSnapshot };

  FreezePlan(CaptureContext& context, Tracees& tracees, const PrecopyLoop& precopy);
  FreezePlan(const FreezePlan&) = delete;
  FreezePlan& operator=(const FreezePlan&) = delete;

  bool snapshots() const { return copy_ == Copy::kSnapshot; }
  /// Room for what will be copied, faulted in; null: there is not enough.
  capture::Staging* staging() { return staging_ ? &*staging_ : nullptr; }
  /// Threads for the freeze window; null: its own is enough.
  WorkerPool* pool() { return pool_ ? &*pool_ : nullptr; }
  MadviseWatch& madvise() { return madvise_; }

 private:
  Copy copy_ = Copy::kNow;
  std::optional<capture::Staging> staging_;
  MadviseWatch madvise_;
  std::optional<WorkerPool> pool_;
};

}  // namespace ckpt::engine
