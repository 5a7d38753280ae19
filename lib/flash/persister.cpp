#include "lib/flash/persister.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "lib/base/clock.h"
#include "lib/base/text.h"
#include "lib/flash/merge.h"

namespace ckpt::flash {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kJointWriting = uint64_t{3600} * 1'000'000;  ///< for the parts of other nodes, once all have joined
constexpr uint64_t kLookForAttempt = 1'000'000, kLookSoon = 20'000;
constexpr uint64_t kMostLate = 10'000'000;  ///< a node's trainers may save a step later than those of rank 0's node
constexpr size_t kMostDue = 64;            ///< steps that not every rank has come to have
constexpr uint64_t kSoonFor = 60'000'000;  ///< so long an attempt is expected once this node's trainers have asked

}  // namespace

bool Persister::follows() const {
  const RankState* zero = ledger_.find(0);
  return ledger_.several_nodes() && ledger_.seen() > 0 && (zero == nullptr || zero->partner_copy);
}

std::optional<uint64_t> Persister::next_look_us() const {
  const uint64_t look = follows() && !working_ ? next_look_us_ : UINT64_MAX;
  const uint64_t next = promised_.empty() ? look : std::min(look, promised_until_us_);
  return next == UINT64_MAX ? std::nullopt : std::optional(next);
}

void Persister::want(uint64_t step, const fs::path& directory, Done done) {
  Wanted what{step, directory.empty() ? options_.directory : directory, {}};
  if (done) what.done.push_back(std::move(done));
  add(std::move(what));
}

void Persister::offer(uint64_t step) { add({step, options_.directory, {}, true, true}); }

void Persister::want_last(uint64_t step) { add({step, options_.directory, {}, false, true}); }

void Persister::add(Wanted what) {
  if (follows()) {
    look_soon_until_us_ = monotonic_us() + kSoonFor;
    next_look_us_ = 0;
    if (!what.offered) promise(what.step);
    return;
  }
  auto join = [&](Wanted& to) {
    to.done.insert(to.done.end(), what.done.begin(), what.done.end());
    to.offered = to.offered && what.offered;
    to.falls_back = to.falls_back || what.falls_back;
  };
  // Where it is too late to hold what is being written, it is to be written anew.
  const bool under_way = working_ && working_->step == what.step && what.directory == working_->directory;
  if (under_way && (what.offered || !working_->offered || hold())) return join(*working_);
  for (Wanted& wanted : wanted_) {
    if (wanted.directory != what.directory ||
        (wanted.step != what.step && !(wanted.done.empty() && what.step > wanted.step)))
      continue;
    wanted.step = what.step;
    return join(wanted);
  }
  wanted_.push_back(std::move(what));
}

std::optional<uint64_t> Persister::step_before(uint64_t step) const {
  std::optional<uint64_t> out;
  for (const uint64_t one : ledger_.common_steps()) {
    if (one < step && (!persisted_ || one > *persisted_)) out = one;
  }
  return out;
}

void Persister::saved(uint64_t step, bool persist) {
  if (persisted_ && *persisted_ >= step) persisted_.reset();  // the job has gone back
  if (persist || (options_.every > 0 && step % options_.every == 0)) due_.insert(step);
  if (due_.size() > kMostDue) due_.erase(due_.begin());
  if (ledger_.newest_common() != step) return;
  const auto later = due_.upper_bound(step);
  if (later != due_.begin()) want(step);
  due_.erase(due_.begin(), later);
}

void Persister::work() {
  if (monotonic_us() >= promised_until_us_) promise({});
  begin_wanted();
  look_for_attempt();
}

void Persister::begin_wanted() {
  if (working_ || wanted_.empty()) return;
  Wanted wanted = std::move(wanted_.front());
  wanted_.pop_front();
  std::vector<Held> ranks = ledger_.holders(wanted.step);
  if (const auto newest = ledger_.newest_common();
      ranks.size() != ledger_.expected() && wanted.done.empty() && newest > wanted.step) {
    // While another one was being put together.
    tell_(fmt::format("step {} was saved over before it could be written: step {} is written in its place", wanted.step,
                      *newest));
    wanted.step = *newest;
    ranks = ledger_.holders(wanted.step);
  }
  if (ranks.empty() || ranks.size() != ledger_.expected())
    return finish(wanted, fail(Code::kMismatch, "", ledger_.why_not_common(wanted.step)));
  if (ledger_.several_nodes() && !is_written_together(options_.format))
    return finish(wanted, not_written_together(options_.format));
  begin(std::move(wanted), std::move(ranks), {});
}

uint64_t Persister::lateness_us() const { return std::min(kMostLate, options_.agree_ms * 1000 / 2); }

void Persister::promise(std::optional<uint64_t> step) {
  for (const Held& held : std::exchange(promised_, {})) count(held, -1);
  if (!step) return;
  promised_ = ledger_.holders(*step);
  promised_step_ = *step;
  promised_until_us_ = monotonic_us() + lateness_us();
  for (const Held& held : promised_) count(held, 1);
}

void Persister::look_for_attempt() {
  const uint64_t now = monotonic_us();
  if (!follows() || working_ || now < next_look_us_) return;
  next_look_us_ = now + (now < look_soon_until_us_ ? kLookSoon : kLookForAttempt);
  const std::optional<Attempt> attempt = find_attempt(options_.directory);
  if (!attempt || attempt->folder == last_attempt_) return;
  const Wanted wanted{attempt->step, options_.directory, {}};
  std::vector<Held> ranks = ledger_.holders(attempt->step);
  const bool complete = ranks.size() == ledger_.expected();
  if (!complete) promise({});  // it is another step: its trainers may not wait for a buffer
  if (!complete && ledger_.newest_common().value_or(0) <= attempt->step) {  // this node may be later than the leader's
    if (std::exchange(awaited_attempt_, attempt->folder) != attempt->folder)
      late_until_us_ = now + lateness_us();
    next_look_us_ = std::min(now + kLookSoon, late_until_us_);
    if (now < late_until_us_) return;
  }
  last_attempt_ = attempt->folder;
  const bool writes = is_written_together(options_.format);
  if (!complete || !writes) {
    const Error why = writes ? Error(Code::kMismatch, "", ledger_.why_not_common(attempt->step))
                             : not_written_together(options_.format);
    decline(*attempt, ledger_.first(), why.text());
    return finish(wanted, why);
  }
  begin(wanted, std::move(ranks), attempt);
}

void Persister::begin(Wanted what, std::vector<Held> ranks, const std::optional<Attempt>& attempt) {
  PersistRequest request;
  request.ranks = std::move(ranks);
  request.step = what.step;
  request.directory = what.directory;
  request.world = ledger_.world();
  request.format = options_.format;
  request.rate = options_.rate;
  request.hurry = &stop_;
  request.keep = options_.keep;
  request.verify = options_.verify;
  request.advances = !(what.directory == options_.directory && persisted_ && *persisted_ > what.step);
  working_ = std::move(what);
  working_ranks_ = request.ranks;
  sequences_.clear();
  for (const Held& held : working_ranks_) sequences_.push_back(held.segment->slot(held.buffer).sequence);
  needed_ = true;
  (void)hold();
  if (promised_step_ == working_->step) promise({});  // another one stays for as long as it was to
  background_.start([this, request = std::move(request), attempt, several = ledger_.several_nodes()]() mutable {
    // The training goes first.
    if (!stop_.requested()) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10);
    const JointControl joint = control();
    auto report = attempt   ? join_persist(request, *attempt, joint, cancel_)
                  : several ? lead_persist(request, joint, cancel_)
                            : persist(request, cancel_);
    background_.post([this, report = std::move(report)]() mutable {
      let_go();
      const Wanted done = std::move(*working_);
      working_.reset(), working_ranks_.clear();
      finish(done, std::move(report));
    });
  });
}

JointControl Persister::control() {
  JointControl out;
  out.joining_us = options_.agree_ms * 1000, out.writing_us = kJointWriting, out.silent_us = options_.lost_ms * 1000;
  out.published = [this] {
    background_.post([this] {
      if (working_->offered) let_go();
    });
  };
  out.joined = [this] { return hold_from_beside(); };
  out.release = [this] {
    background_.post([this] {
      needed_ = false;
      let_go();
    });
  };
  return out;
}

Result<void> Persister::hold_from_beside() {
  auto held = std::make_shared<std::promise<bool>>();
  std::future<bool> answer = held->get_future();
  if (std::this_thread::get_id() == loop_)
    held->set_value(hold());  // there was no room for a thread
  else
    background_.post([this, held] { held->set_value(hold()); });
  while (answer.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) CKPT_TRY(cancel_.check());
  if (answer.get()) return {};
  return fail(Code::kMismatch, "", "a later step was saved over it before all nodes had joined");
}

bool Persister::hold() {
  if (holds_ || !needed_) return true;
  for (size_t i = 0; i < working_ranks_.size(); ++i) {
    const Held& held = working_ranks_[i];
    if (held.segment->slot(held.buffer).sequence != sequences_[i]) return false;
    const RankState* state = ledger_.find(held.rank);
    if (state != nullptr && state->segment == held.segment && state->use[held.buffer].writing) return false;
  }
  for (const Held& held : working_ranks_) count(held, 1);
  return holds_ = true;
}

void Persister::let_go() {
  if (!std::exchange(holds_, false)) return;
  for (const Held& held : working_ranks_) count(held, -1);
}

void Persister::count(const Held& held, int by) {
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
    const bool other_nodes = report.error().code == Code::kMismatch && ledger_.several_nodes() && !follows();
    const auto before = what.falls_back && other_nodes ? step_before(what.step) : std::nullopt;
    if (before) add({*before, what.directory, {}, what.offered, true});
  }
  for (const Done& done : what.done) done(what.step, report);
}

}  // namespace ckpt::flash
