// Which rank has which step in which buffer, and what may be overwritten: the rules, without sockets and threads.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "lib/flash/segment.h"

namespace ckpt::flash {

/// Of one rank's buffer, as the agent knows it.
struct BufferUse {
  bool writing = false;  ///< its trainer was given it (kBegin)
  unsigned readers = 0;  ///< persists that copy from it
  bool mapped = false;   ///< by its trainer, after a load
  uint64_t owner = 0;    ///< the connection that it was given to last
};

struct RankState {
  std::shared_ptr<Segment> segment;
  std::array<BufferUse, kMostBuffers> use;
  std::shared_ptr<Segment> before;  ///< of another layout, until the first step of this one is complete on all ranks

  std::optional<uint32_t> buffer_of(uint64_t step) const;
  /// Steps that are complete.
  std::set<uint64_t> steps() const;
};

/// A rank's buffer with a step.
struct Held {
  uint32_t rank = 0;
  std::shared_ptr<Segment> segment;
  uint32_t buffer = 0;
};

class Ledger {
 public:
  RankState& rank(uint32_t number) { return ranks_[number]; }
  const std::map<uint32_t, RankState>& ranks() const { return ranks_; }
  /// Ranks that belong to this node; 0: not known yet.
  void expect(uint32_t ranks) { expected_ = ranks; }
  uint32_t expected() const { return expected_; }

  /// Steps that every rank of this node has complete, in ascending order.
  std::vector<uint64_t> common_steps() const;
  std::optional<uint64_t> newest_common() const;

  enum class Choice { kGranted, kBusy, kPinned };
  /// The buffer that a new step may be written to: never the newest common step's where there is another, nor one that
  /// is read. kPinned: only the trainer's own mapping stands in the way.
  Choice choose(uint32_t rank, uint64_t step, uint32_t& buffer) const;
  /// Drops segments of former layouts that the newest common step no longer needs.
  void settle();
  /// Takes away later steps than this one that connections which are not in `alive` have saved.
  void forget_after(uint64_t step, const std::set<uint64_t>& alive);
  /// Of a step that is common.
  std::vector<Held> holders(uint64_t step) const;

 private:
  std::map<uint32_t, RankState> ranks_;
  uint32_t expected_ = 0;
};

}  // namespace ckpt::flash
