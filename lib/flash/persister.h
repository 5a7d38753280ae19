// Which steps are written to storage, and when: one after the other, on one node or together with the agents of others.
#pragma once

#include <filesystem>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/flash/agent.h"
#include "lib/flash/background.h"
#include "lib/flash/joint.h"
#include "lib/flash/ledger.h"
#include "lib/flash/persist.h"

namespace ckpt::flash {

/// Of the agent's loop alone; only the writing itself is done beside it.
class Persister {
 public:
  /// Told when a step that was wanted is durable, or is not to be.
  using Done = std::function<void(uint64_t step, const Result<PersistReport>&)>;

  /// `stop`: the agent is to end, so that this is in a hurry. `cancel`: what is under way is given up.
  Persister(const AgentOptions& options, Ledger& ledger, Background& background, const Cancel& stop,
            const Cancel& cancel, const Tell& tell)
      : options_(options), ledger_(ledger), background_(background), stop_(stop), cancel_(cancel), tell_(tell) {}

  /// Of those that nobody waits for only the newest is written, and where one has been saved over meanwhile the newest
  /// there is. Where another node's agent leads nothing is: that one is looked for more often, and what it will want is
  /// held for some time.
  void want(uint64_t step, const std::filesystem::path& directory = {}, Done done = {});
  /// As `want`, of a step that nobody has asked for: until all nodes have joined no save waits for it, or is skipped.
  void offer(uint64_t step);
  /// As `want`, by an agent that ends. What this or `offer` has wanted and other nodes lack is wanted again as the next
  /// older step that this node has.
  void want_last(uint64_t step);
  /// A rank has saved the step. `persist`: its trainer wants it on disk, once every rank has it.
  void saved(uint64_t step, bool persist);
  /// It was read from the newest checkpoint.
  void found(uint64_t step) { persisted_ = step; }
  /// Begins what is wanted, or what another node's agent has begun. To be called in every turn of the loop.
  void work();

  bool is_working() const { return working_.has_value(); }
  bool is_idle() const { return !working_ && wanted_.empty(); }
  /// The step that is being written.
  std::optional<uint64_t> working_on() const { return working_ ? std::optional(working_->step) : std::nullopt; }
  /// The last one on disk, by this agent or found there, that was not saved anew since.
  std::optional<uint64_t> persisted() const { return persisted_; }
  /// When `work` wants to be called, though nothing happened: monotonic_us.
  std::optional<uint64_t> next_look_us() const;
  /// Ranks are on other nodes, too, and rank 0 is one of those: its agent says when.
  bool follows() const;

  uint64_t persists() const { return persists_; }
  uint64_t failures() const { return failures_; }
  const std::string& last_error() const { return last_error_; }

 private:
  struct Wanted {
    uint64_t step = 0;
    std::filesystem::path directory;
    std::vector<Done> done;
    bool offered = false;  ///< by `offer` alone
    bool falls_back = false;
  };

  void add(Wanted what);
  /// The newest step below this one that may be wanted in its place.
  std::optional<uint64_t> step_before(uint64_t step) const;

  void begin_wanted();
  void look_for_attempt();
  /// Until the leader wants this step: nobody may write over it. No step: nothing is held any more.
  void promise(std::optional<uint64_t> step);
  /// How long a node's trainers may be later with a step than those of rank 0's node.
  uint64_t lateness_us() const;
  /// `attempt`: of another node's agent.
  void begin(Wanted what, std::vector<Held> ranks, const std::optional<Attempt>& attempt);
  JointControl control();
  /// Nobody may write over the step that is being written. False: somebody has.
  bool hold();
  void let_go();
  void count(const Held& held, int by);
  /// `hold`, from whichever thread.
  Result<void> hold_from_beside();
  void finish(const Wanted& what, Result<PersistReport> report);

  const AgentOptions& options_;
  Ledger& ledger_;
  Background& background_;
  const Cancel &stop_, &cancel_;
  const Tell& tell_;
  std::list<Wanted> wanted_;
  std::optional<Wanted> working_;
  std::vector<Held> working_ranks_;
  std::vector<uint64_t> sequences_;  ///< of their buffers, when the work began
  bool holds_ = false, needed_ = true;
  const std::thread::id loop_ = std::this_thread::get_id();
  std::vector<Held> promised_;       ///< of one step, that the leader will want
  uint64_t promised_step_ = 0;
  uint64_t promised_until_us_ = 0;
  std::set<uint64_t> due_;  ///< to be persisted once every rank has it, or where one never will a later one
  std::optional<uint64_t> persisted_;
  std::filesystem::path last_attempt_;     ///< of another agent, that this one has taken part in or declined
  std::filesystem::path awaited_attempt_;  ///< for whose step it waits, until `late_until_us_`
  uint64_t next_look_us_ = 0, look_soon_until_us_ = 0, late_until_us_ = 0;
  uint64_t persists_ = 0, failures_ = 0;
  std::string last_error_;
};

}  // namespace ckpt::flash
