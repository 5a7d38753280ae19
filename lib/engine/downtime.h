// How long a stop of a tree is expected to be. Predictions are rough; a wrong one costs time, never correctness.
#pragma once

#include <cstdint>

#include "lib/engine/dump.h"
#include "lib/state/inventory.h"

namespace ckpt::engine {

class Downtime {
 public:
  /// `running`: the tree, collected while it ran. `runs_on`: it stops for the copy alone, and not until that is safe.
  Downtime(const capture::Inventory& running, const DumpOptions& options, bool runs_on)
      : running_(running), options_(options), waits_for_link_(options.pages.take && !runs_on) {}

  /// Private memory that the processes hold now, swapped out or not.
  uint64_t private_bytes() const;
  /// Of shared memory and deleted files.
  uint64_t contents_bytes() const;
  uint64_t copying_us(uint64_t bytes) const;
  /// So many bytes of memory have been taken by DumpOptions::pages in that time.
  void observe(uint64_t bytes, uint64_t us) {
    if (us != 0 && bytes != 0) link_rate_ = static_cast<double>(bytes) / static_cast<double>(us);
  }
  /// A snapshot of every process instead.
  uint64_t fork_us() const;
  /// True when the stop is short enough with so much private memory to copy, or that is the smaller part of it and not
  /// much. `scan_us`: of finding it, by all threads together.
  bool is_short(uint64_t bytes, uint64_t scan_us) const;

 private:
  const capture::Inventory& running_;
  const DumpOptions& options_;
  const bool waits_for_link_;
  static constexpr double kUnknownLinkRate = 100;  ///< bytes a microsecond
  double link_rate_ = kUnknownLinkRate;
};

}  // namespace ckpt::engine
