// What every part of a capture is given: what was asked for, what that decides, and where to tell how it goes.
#pragma once

#include "lib/base/cancel.h"
#include "lib/base/clock.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/worker_pool.h"
#include "lib/engine/dump.h"
#include "lib/memory/copy.h"
#include "lib/state/inventory.h"
#include "lib/store/image.h"

namespace ckpt::engine {

/// While it lives whoever takes the pages knows that a process waits for them.
class InAHurry {
 public:
  explicit InAHurry(const DumpOptions& options) : tell_(options.in_a_hurry) {
    if (tell_) tell_(true);
  }
  ~InAHurry() {
    if (tell_) tell_(false);
  }
  InAHurry(const InAHurry&) = delete;
  InAHurry& operator=(const InAHurry&) = delete;

 private:
  const std::function<void(bool)>& tell_;
};

class CaptureContext {
 public:
  enum class Verb { kPreDump, kDump };
  CaptureContext(Verb verb, const DumpOptions& options, ProgressSink& progress, const Cancel& cancel);
  CaptureContext(const CaptureContext&) = delete;
  CaptureContext& operator=(const CaptureContext&) = delete;

  const Verb verb;
  const DumpOptions::After after;  ///< the tree, once the image is durable; a pre-dump leaves it running
  const DumpOptions& options;
  ProgressSink& progress;
  const Cancel& cancel;
  store::Manifest manifest;  ///< what the image says of itself, as far as it is known

  bool runs_on() const { return after == DumpOptions::After::kLeaveRunning; }
  bool ends() const { return after == DumpOptions::After::kEnd; }
  /// Established connections are held off, from before the freeze window until the image is restored; of a tree that
  /// goes on until all of its job have been captured.
  bool holds_connections() const { return options.together != nullptr || (ends() && options.sockets.tcp_established); }
  store::CaptureStats& stats() { return manifest.stats; }

  /// What ends must be restorable by whoever ends it.
  Result<void> check_end() const;
  /// The person's own script for this step.
  Result<void> act(const char* action) const;
  /// What went by since the last call, or the construction, was this phase.
  void phase(const char* name);

  capture::CopyOptions copy_options() const { return {options.workers, &progress, &cancel}; }
  /// In a job connections inside of it go with the image in any case.
  capture::SocketOptions sockets() const;
  /// Of a tree that runs; `just_before` was collected a moment ago, or is null.
  capture::InventoryOptions running_options(const capture::Inventory* just_before) const;
  /// Of a tree that is frozen; `earlier` was collected while it ran.
  capture::InventoryOptions frozen_options(const capture::Inventory& earlier, WorkerPool* pool) const;

 private:
  Stopwatch watch_;
};

}  // namespace ckpt::engine
