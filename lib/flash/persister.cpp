#include "lib/flash/persister.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "lib/base/clock.h"
#include "lib/base/text.h"

namespace ckpt::flash {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kJointWriting = uint64_t{3600} * 1'000'000;  ///< for the parts of other nodes, once all have joined
constexpr uint64_t kLookForAttempt = 1'000'000, kLookSoon = 20'000;
constexpr uint64_t kSoonFor = 60'000'000;  ///< so long an attempt is expected once this node's trainers have asked

}  // namespace

bool Persister::follows() const {
  const RankState* zero = ledger_.find(0);
  return ledger_.several_nodes() && ledger_.seen() > 0 && (zero == nullptr || zero->partner_copy);
}

std::optional<uint64_t> Persister::next_look_us() const {
  return follows() && !working_ ? std::optional(next_look_us_) : std::nullopt;
}

void Persister::want(uint64_t step, const fs::path& directory, Done done) {
  if (follows()) {
    look_soon_until_us_ = monotonic_us() + kSoonFor;
    next_look_us_ = 0;
    return;
  }
  const fs::path where = directory.empty() ? options_.directory : directory;
  auto add = [&](Wanted& to) {
    if (done) to.done.push_back(std::move(done));
  };
  if (working_ && working_->step == step && where == working_->directory) return add(*working_);
  for (Wanted& wanted : wanted_) {
    if (wanted.directory != where || (wanted.step != step && !(wanted.done.empty() && step > wanted.step))) continue;
    wanted.step = step;
    return add(wanted);
  }
  wanted_.push_back({step, where, {}});
  add(wanted_.back());
}

void Persister::saved(uint64_t step, bool persist) {
  if (persisted_ == step) persisted_.reset();
  if (persist) due_ = due_ ? std::max(*due_, step) : step;
  if (ledger_.newest_common() != step) return;
  const bool periodic = options_.every > 0 && step % options_.every == 0;
  if (due_ == step || periodic) want(step);
  if (due_ && *due_ <= step) due_.reset();
}

void Persister::work() {
  begin_wanted();
  look_for_attempt();
}

void Persister::begin_wanted() {
  if (working_ || wanted_.empty()) return;
  Wanted wanted = std::move(wanted_.front());
  wanted_.pop_front();
  std::vector<Held> ranks = ledger_.holders(wanted.step);
  if (ranks.empty() || ranks.size() != ledger_.expected())
    return finish(wanted, fail(Code::kMismatch, "", ledger_.why_not_common(wanted.step)));
  if (ledger_.several_nodes() && options_.format != "dcp") {
    return finish(wanted, Error(Code::kUnsupported, options_.format, "is not written by several nodes")
                              .with_hint("--to dcp; ckpt convert makes the others of it"));
  }
  begin(std::move(wanted), std::move(ranks), {});
}

void Persister::look_for_attempt() {
  const uint64_t now = monotonic_us();
  if (!follows() || working_ || now < next_look_us_) return;
  next_look_us_ = now + (now < look_soon_until_us_ ? kLookSoon : kLookForAttempt);
  const std::optional<Attempt> attempt = find_attempt(options_.directory);
  if (!attempt || attempt->folder == last_attempt_) return;
  last_attempt_ = attempt->folder;
  Wanted wanted{attempt->step, options_.directory, {}};
  std::vector<Held> ranks = ledger_.holders(attempt->step);
  if (ranks.size() != ledger_.expected()) {
    const std::string why = ledger_.why_not_common(attempt->step);
    decline(*attempt, ledger_.first(), why);
    return finish(wanted, fail(Code::kMismatch, "", why));
  }
  begin(std::move(wanted), std::move(ranks), attempt);
}

void Persister::begin(Wanted what, std::vector<Held> ranks, const std::optional<Attempt>& attempt) {
  PersistRequest request;
  request.ranks = std::move(ranks);
  request.step = what.step;
  request.directory = what.directory;
  request.world = ledger_.world();
  request.format = options_.format;
  request.rate = stop_.requested() ? 0 : options_.rate;  // last words are in a hurry
  request.keep = options_.keep;
  request.verify = options_.verify;
  request.advances = !(what.directory == options_.directory && persisted_ && *persisted_ > what.step);
  for (const Held& held : request.ranks) hold(held, 1);
  working_ = std::move(what);
  background_.start([this, request = std::move(request), attempt, several = ledger_.several_nodes()]() mutable {
    // The training goes first.
    if (!stop_.requested()) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10);
    JointControl control{options_.agree_ms * 1000, kJointWriting,
                         [this, ranks = request.ranks, released = false]() mutable {
                           if (std::exchange(released, true)) return;
                           background_.post([this, ranks] {
                             for (const Held& held : ranks) hold(held, -1);
                           });
                         }};
    auto report = attempt   ? join_persist(request, *attempt, control, cancel_)
                  : several ? lead_persist(request, control, cancel_)
                            : persist(request, cancel_);
    control.release();
    background_.post([this, report = std::move(report)]() mutable {
      const Wanted done = std::move(*working_);
      working_.reset();
      finish(done, std::move(report));
    });
  });
}

void Persister::hold(const Held& held, int by) {
  if (ledger_.find(held.rank) == nullptr) return;  // the job began anew meanwhile, with fewer ranks
  RankState& state = ledger_.rank(held.rank);
  if (state.segment == held.segment) state.use[held.buffer].readers += static_cast<unsigned>(by);
}

void Persister::finish(const Wanted& what, Result<PersistReport> report) {
  if (report) {
    ++persists_;
    if (what.directory == options_.directory) persisted_ = what.step;
    tell_(fmt::format("step {} is in {}: {}, written in {}, verified in {}, synced in {}", what.step,
                      report->path.string(), human_bytes(report->bytes), human_us(report->plan_us + report->write_us),
                      human_us(report->verify_us), human_us(report->sync_us)));
    for (const std::string& note : report->notes) tell_("note: " + note);
  } else {
    ++failures_;
    last_error_ = report.error().text();
    tell_(fmt::format("step {} was not persisted: {}", what.step, last_error_));
  }
  for (const Done& done : what.done) done(what.step, report);
}

}  // namespace ckpt::flash
