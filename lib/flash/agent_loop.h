// The loop of `ckpt agent`: its connections (agent.cpp), what trainers save (agent_saves.cpp), what they load and what
// is written (agent_loads.cpp). One thread.
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/json_writer.h"
#include "lib/base/program_cancel.h"
#include "lib/flash/agent.h"
#include "lib/flash/background.h"
#include "lib/flash/channel.h"
#include "lib/flash/ledger.h"
#include "lib/flash/listener.h"
#include "lib/flash/persister.h"

namespace ckpt::flash {

struct Connection {
  uint64_t number = 0;  ///< of all that there were
  UniqueFd socket, process;
  int pid = 0;
  std::optional<uint32_t> rank;
  bool copies = false;  ///< what it saves is a partner copy: the rank's trainer is on another node
  bool bye = false, gone = false;
};

/// A kBegin that waits for a buffer.
struct WaitingBegin {
  std::shared_ptr<Connection> from;
  Request request;
  uint64_t deadline_us = 0;
};

struct Counts {
  uint64_t saves = 0, skipped = 0, waited = 0, refused = 0, aborted = 0, deaths = 0;
};

class Agent {
 public:
  Agent(const AgentOptions& options, const Cancel& stop, const Tell& tell)
      : options_(options), stop_(stop), tell_(tell) {
    set_program_cancel(cancel_);  // asked to stop, it still writes what trainers have saved
  }
  ~Agent() {
    give_up_.store(true);
    cancel_.request();
    background_.join();
    forget_program_cancel();
  }

  Result<AgentEnd> run(const std::function<void()>& ready);

 private:
  // --- the loop ---

  Result<void> turn(int timeout);
  /// Until the next deadline; -1: none.
  int timeout_ms() const;
  /// Ranks of this node whose trainers are connected.
  std::set<uint32_t> present() const;
  bool lonely() const;
  /// Once every rank has ended in order nobody comes back.
  uint64_t linger_us() const;
  void welcome();
  void receive(const std::shared_ptr<Connection>& from);
  void answer(const std::shared_ptr<Connection>& to, const Request& request, Reply reply, const std::string& text = {},
              int fd = -1);
  void refuse(const std::shared_ptr<Connection>& to, const Request& request, const Error& error);
  /// Closes the connection; its rank's data stay.
  void leave(const std::shared_ptr<Connection>& who);

  // --- requests ---

  void handle(const std::shared_ptr<Connection>& from, Incoming message);
  Result<void> hello(const std::shared_ptr<Connection>& from, const Request& request);
  Result<uint32_t> rank_of(const Connection& from) const;

  // --- saving ---

  Result<void> declare(const std::shared_ptr<Connection>& from, Incoming& message);
  size_t partner_copies() const { return ledger_.ranks().size() - ledger_.seen(); }
  /// The old one stays for as long as it has the newest step.
  void replace_segment(RankState& state, std::shared_ptr<Segment> segment);
  Result<void> hand_over(const std::shared_ptr<Connection>& to, const Request& request, const RankState& state);
  Result<void> adopt(const std::shared_ptr<Connection>& from, Incoming& message);
  Result<RankState*> declared(const Connection& from);
  Result<BufferUse*> buffer_in(const Connection& from, const Request& request);
  Result<void> begin(const std::shared_ptr<Connection>& from, const Request& request);
  static void grant(const Connection& to, RankState& state, uint32_t buffer);
  std::string busy_text() const;
  void retry_begins();
  Result<void> commit(const std::shared_ptr<Connection>& from, const Request& request);
  Result<void> abort(const std::shared_ptr<Connection>& from, const Request& request);
  Result<void> keep(const std::shared_ptr<Connection>& from, const Request& request);
  Result<void> release(const std::shared_ptr<Connection>& from, const Request& request);

  // --- loading ---

  Result<void> load(const std::shared_ptr<Connection>& from, const Incoming& message);
  /// What is here of a rank of another node.
  Result<void> load_copy(const std::shared_ptr<Connection>& to, const Request& request, const RankState& copy);
  /// `newest`: no checkpoint was named.
  void loaded(const std::shared_ptr<Connection>& from, const Request& request, uint32_t rank,
              Result<std::shared_ptr<Segment>> segment, bool newest);
  Result<void> hand_out(const std::shared_ptr<Connection>& to, const Request& request, const Held& held, uint64_t step,
                        Level level);
  /// The job goes on from this step: what trainers that are gone have saved after it will not come to be, and must not
  /// be taken for the same steps of those that are now. `came`: a connection; only of those that were gone before it.
  void forget_after(uint64_t step, uint64_t came = UINT64_MAX);

  // --- persisting ---

  Result<void> persist_asked(const std::shared_ptr<Connection>& from, const Incoming& message);
  void tell_persisted(const std::shared_ptr<Connection>& to, const Request& request,
                      const Result<PersistReport>& report);
  /// What a SIGTERM leaves time for.
  Result<AgentEnd> last_words();
  std::string status() const;
  void status_of_ranks(JsonWriter& out, const char* name, bool partner_copies) const;

  const AgentOptions& options_;
  const Cancel& stop_;
  const Tell& tell_;
  Listener listener_;
  sigset_t waiting_mask_{};
  std::list<std::shared_ptr<Connection>> connections_;
  uint64_t connections_made_ = 0;
  std::list<WaitingBegin> begins_;
  Ledger ledger_;
  std::set<uint32_t> ended_;  ///< ranks that said kBye
  Counts counts_;
  bool told_of_copies_ = false;  ///< that they have one buffer
  uint64_t lonely_since_ = monotonic_us();

  std::atomic<bool> give_up_{false};
  Cancel cancel_;
  Background background_;
  Persister persister_{options_, ledger_, background_, stop_, cancel_, tell_};
};

}  // namespace ckpt::flash
