// Which rank has which step in which buffer, and what may be overwritten: the rules, without sockets and threads.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/flash/segment.h"

namespace ckpt::flash {

/// Of one rank's buffer, as the agent knows it.
struct BufferUse {
  bool writing = false;  ///< its trainer was given it (kBegin)
  unsigned readers = 0;  ///< persists that copy from it
  bool mapped = false;   ///< by its trainer, after a load
  uint64_t owner = 0;    ///< the connection that it was given to last
  uint64_t left = 0;     ///< how many connections there had been when that one ended
};

struct RankState {
  std::shared_ptr<Segment> segment;
  std::array<BufferUse, kMostBuffers> use;
  std::shared_ptr<Segment> before;  ///< of another layout, until the first step of this one is complete on all ranks
  std::array<BufferUse, kMostBuffers> use_before;
  std::optional<uint64_t> kept;     ///< the step that the trainer wants kept, whatever is saved after it
  std::optional<uint64_t> kept_by_former;  ///< that the one before it did, until this one has saved or said something
  bool partner_copy = false;        ///< of a rank of another node: no step of this node waits for it

  /// The buffer's slot, where a step is complete in it and its trainer is done with it.
  std::optional<SlotState> complete(uint32_t buffer) const;
  /// The last one, where it was saved twice.
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
  /// Null: nothing is known of it.
  const RankState* find(uint32_t number) const;
  /// A trainer is this rank of this node, from now on, with what is here of it.
  void take_in(uint32_t number) { ranks_[number].partner_copy = false; }
  /// Where there are more ranks than belong to this node, the launcher has moved some to another: those that are not in
  /// `present` become partner copies.
  void give_away_surplus(const std::set<uint32_t>& present);
  /// The rank is of another node.
  void take_copy(uint32_t number) { ranks_[number].partner_copy = true; }
  const std::map<uint32_t, RankState>& ranks() const { return ranks_; }
  /// Ranks that belong to this node, and those of the whole job.
  void expect(uint32_t ranks, uint32_t world) {
    expected_ = ranks;
    world_ = world;
  }
  uint32_t expected() const { return expected_; }
  uint32_t world() const { return world_; }  ///< 0: not known yet
  bool several_nodes() const { return expected_ < world_; }

  /// How many ranks of this node have been here.
  size_t seen() const;
  /// Steps that every rank of this node has complete, in ascending order.
  std::vector<uint64_t> common_steps() const;
  std::optional<uint64_t> newest_common() const;
  /// In words; `step`: kAnyStep is any.
  std::string why_not_common(uint64_t step) const;
  /// The lowest of this node's ranks that have been here.
  uint32_t first() const;

  enum class Choice { kGranted, kBusy, kPinned };
  /// The buffer that a new step may be written to: none that is read, and where there is another not that of the step
  /// that the trainer wants kept; if it named none, of the newest common step, or of a partner copy's newest. kPinned:
  /// only the trainer's own mapping stands in the way.
  Choice choose(uint32_t rank, uint64_t step, uint32_t& buffer) const;
  /// Drops segments of former layouts that the newest common step no longer needs; where there are several nodes, once
  /// every buffer of the new one has a step.
  void settle();
  /// The connection has ended; `connections`: how many there have been.
  void owner_left(uint64_t connection, uint64_t connections);
  /// Takes away later steps than this one that connections which are not in `alive` have saved, if they had ended when
  /// the connection `came`.
  void forget_after(uint64_t step, const std::set<uint64_t>& alive, uint64_t came);
  /// The rank has saved this step: later ones of it are of before it went back, whoever saved them.
  void forget_own_after(uint32_t rank, uint64_t step);
  /// This node's ranks with the step.
  std::vector<Held> holders(uint64_t step) const;
  std::optional<Held> holder(uint32_t number, uint64_t step) const;

 private:
  /// The step that the trainer wants kept is of the former layout, or the job's other nodes may not have a later one.
  bool needs_before(uint32_t number, const RankState& state) const;

  std::map<uint32_t, RankState> ranks_;
  uint32_t expected_ = 0, world_ = 0;
};

}  // namespace ckpt::flash
