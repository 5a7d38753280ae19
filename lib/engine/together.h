// What the ckpts of a job do together: each has a tree of its own, and none goes further than all have come. See the
// README, "Many ckpts at once".
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/store/image.h"
#include "lib/store/job.h"

namespace ckpt::engine {

/// How long one waits for the others.
struct Patience {
  const Cancel* cancel = nullptr;  ///< null: nothing ends the wait but a circle that is broken
  uint64_t most_us = 0;            ///< 0: no limit
};

/// All members, who know each other by rank.
class Circle {
 public:
  virtual ~Circle() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;
  /// What each member gives, by rank; all call it, in the same order. kInterrupted, kBusy: nobody waits any longer; the
  /// answer is still to come, and `overdue` takes it in. kIo: the circle is broken.
  virtual Result<std::vector<std::string>> gather(const std::string& mine, const Patience& patience) = 0;
  /// Whether an answer is still to come.
  virtual bool is_overdue() const = 0;
  virtual Result<std::vector<std::string>> overdue(const Patience& patience) = 0;
  /// There is nothing more to agree on: true from the first `end` on, in all processes that use the circle.
  virtual void end() = 0;
  virtual bool has_ended() const = 0;
};

/// One end of a TCP connection, as its member sees it.
struct ConnectionEnd {
  std::string local, remote;        ///< with addresses in their plain form
  std::string network;              ///< of addresses that mean something else on another host; else empty
  bool has_sequences = false;       ///< of a tree that is frozen
  uint32_t unacknowledged = 0;      ///< first byte that the other end may lack
  uint32_t sent = 0, received = 0;  ///< the byte after the last one of each queue
  bool operator==(const ConnectionEnd&) const = default;
};
/// Of the established ones among the sockets. `network`: of this member's network namespace and host.
std::vector<ConnectionEnd> connection_ends(const std::vector<store::Socket>& sockets, const std::string& network);
/// Those of member `rank` whose other end no member has, by their place.
std::vector<size_t> outside_connections(const std::vector<std::vector<ConnectionEnd>>& by_rank, uint32_t rank);
/// Those whose other ends were taken at another instant: what the one takes for received the other has not sent.
std::vector<size_t> unfit_connections(const std::vector<std::vector<ConnectionEnd>>& by_rank, uint32_t rank);

/// Of this process: its host's and its network namespace.
std::string own_network();

/// All members call the same in the same order, up to the first that returns an error: then all get that, the error of
/// the lowest rank that has one, with its rank. One that fails for a reason of its own gives it to `fail`, which takes
/// part in what the others are about to agree on, and calls nothing any more.
class Together {
 public:
  struct Facts {
    std::string verb;              ///< what has to be the same for all
    std::filesystem::path folder;  ///< of the job
    std::string job;               ///< a restore: its id; empty: rank 0 makes one
    uint32_t ranks = 0;            ///< of the job; 0: as many as there are
    uint64_t freeze_timeout_us = 0;
    /// How long a tree stands still for the others, whose parts are not done; 0: no limit.
    uint64_t hold_limit_us = 0;
    bool ends_processes = false;  ///< the tree stands still up to the last agreement; the verb decides it: all the same
    /// A dump: who is what in the training, by its ranks; the name of its file, and what tells it from another one.
    std::vector<Place> topology;
    std::string topology_name, topology_id;
  };
  Together(Circle& circle, const Cancel& cancel) : circle_(circle), cancel_(cancel) {}
  Together(const Together&) = delete;
  Together& operator=(const Together&) = delete;

  Result<void> join(const Facts& facts);
  uint32_t rank() const { return circle_.rank(); }
  store::JobPart part() const { return {job_, rank(), circle_.size()}; }

  // A dump, in this order.
  /// Which members have which ranks of the training, by the variables of their processes; nothing without a topology.
  Result<void> place(const std::vector<int>& processes);
  /// While the trees run: of the connections that `look` sees those that no member has the other end of, by their place
  /// in what it returned last. One that is just being made has one end only: some looks have to agree.
  using Look = std::function<Result<std::vector<ConnectionEnd>>()>;
  Result<std::vector<size_t>> find_outside(const Look& look);
  /// What each has to say at a step of its own, by rank: `most_us` is how long it waits for the others; 0: no limit.
  Result<std::vector<std::string>> tell(const char* step, std::string data, uint64_t most_us) {
    return exchange({step, {}, std::move(data)}, {&cancel_, most_us});
  }
  /// All has been copied that can be while the trees run.
  Result<void> ready() { return agree("ready", {&cancel_}); }
  /// Each has at hand what its stop needs: the trees stop within one answer of each other.
  Result<void> prepared() { return agree("prepared", {&cancel_}); }
  /// All trees stand still, and no packet of theirs passes. Which of `ends` no member has the other end of.
  Result<std::vector<size_t>> frozen(const std::vector<ConnectionEnd>& ends);
  /// All that is needed of the trees has been taken: they may go on.
  Result<void> captured();
  /// All trees that go on do so: what is left to do keeps no processor from a ckpt whose tree still stands.
  Result<void> running() { return agree("running", {&cancel_}); }
  /// Returns at once where this part is the first of its replicas or the trees stand still, else once all those are on
  /// their disks. `may_wait`: false: it is written at once in any case.
  Result<void> await_turn(bool may_wait = true);
  /// All of each part is on its disk.
  Result<void> durable();
  /// Each part `dir` has its name: then the job gets its manifest. Where it does not get one the part is removed; kIo
  /// with a hint: this member cannot know any more, and leaves it.
  Result<void> commit(const std::filesystem::path& dir, const store::Manifest& manifest, ProgressSink& notes);

  // A restore, in this order.
  /// Every tree is made, and held.
  Result<void> made() { return agree("made", {&cancel_}); }
  /// No packet is held off any more.
  Result<void> opened() { return agree("opened", {&cancel_}); }
  /// The trees run, or this one could not be let go: then all are to be ended.
  Result<void> released(Result<void> mine);

  /// What is to be told of a failure: of those that all members have the one of the lowest rank.
  Error fail(Error mine);
  /// Whether all members have this error to tell, so that the word of one is enough: rank 0's.
  bool is_common(const Error& error) const {
    return common_ && common_->code == error.code && common_->message == error.message;
  }
  bool has_ended() const { return circle_.has_ended(); }

 private:
  struct Word {
    const char* step;
    Result<void> status = {};
    std::string data = {};
  };
  Result<std::vector<std::string>> exchange(const Word& mine, const Patience& patience);
  Result<std::vector<std::string>> take(const Result<std::vector<std::string>>& answers, const char* step);
  Error end_with(Error common);
  Result<void> agree(const char* step, const Patience& patience);
  uint64_t hold_limit_us() const { return facts_.ends_processes ? facts_.hold_limit_us : 0; }
  Error too_late(Error error) const;
  bool takes_turns() const;
  Result<void> first_durable() { return agree("first", {&cancel_}); }  ///< no tree stands still for it
  Result<void> exchange_ends(const char* step, const std::vector<ConnectionEnd>& ends, const Patience& patience);
  Result<store::Job> collect_parts(const std::filesystem::path& dir, const store::Manifest& manifest);
  Result<void> write_manifest(const store::Job& job, ProgressSink& notes);

  Circle& circle_;
  const Cancel& cancel_;
  Facts facts_;
  std::string job_, created_;
  std::vector<std::string> hosts_;                ///< by rank, once they have met
  std::vector<std::vector<ConnectionEnd>> ends_;  ///< of all members, as of the last exchange
  std::vector<store::JobRank> ranks_;             ///< of the training
  std::vector<bool> first_;                       ///< by rank: store::first_replicas
  bool has_waited_ = false;                       ///< for those
  std::optional<Error> common_;                   ///< what ended it
};

}  // namespace ckpt::engine
