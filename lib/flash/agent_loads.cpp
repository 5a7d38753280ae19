// What trainers load, what they want on disk, and what the agent says of itself.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "lib/base/json_writer.h"
#include "lib/flash/agent_loop.h"

namespace ckpt::flash {

Result<void> Agent::load(const std::shared_ptr<Connection>& from, const Incoming& message) {
  const Request& request = message.request;
  CKPT_TRY_ASSIGN(const uint32_t own, rank_of(*from));
  const uint32_t rank = request.rank;  // another's, for those who put parts of several together
  if (rank >= ledger_.world()) return fail(Code::kUsage, "load", "names no rank of this job");
  const auto how = static_cast<LoadFrom>(request.flags);
  if (const RankState* copy = ledger_.find(rank); copy != nullptr && copy->partner_copy)
    return load_copy(from, request, *copy);
  const auto steps = ledger_.common_steps();
  const bool any = request.step == kAnyStep;
  const bool there = any ? !steps.empty() : std::find(steps.begin(), steps.end(), request.step) != steps.end();
  if (how != LoadFrom::kStorage && message.text.empty() && there) {
    const uint64_t step = any ? steps.back() : request.step;
    // Whoever goes on from a step saves later ones anew; those of before must not be taken for parts of them.
    if (rank == own && (any || how == LoadFrom::kBest)) forget_after(step);
    for (const Held& held : ledger_.holders(step)) {
      if (held.rank == rank) return hand_out(from, request, held, step, Level::kMemory);
    }
  }
  if (how == LoadFrom::kMemory) return fail(Code::kNotFound, "", ledger_.why_not_common(request.step));
  if (rank != own) return fail(Code::kUsage, "load", "of another rank comes from memory alone");
  background_.start([this, from, request, rank, path = std::filesystem::path(message.text), world = ledger_.world()] {
    auto segment = load_rank(options_.directory, path, rank, world, cancel_);
    background_.post([this, from, request, rank, path, segment = std::move(segment)]() mutable {
      loaded(from, request, rank, std::move(segment), path.empty());
    });
  });
  return {};
}

Result<void> Agent::load_copy(const std::shared_ptr<Connection>& to, const Request& request, const RankState& copy) {
  const std::set<uint64_t> steps = copy.steps();
  const uint64_t step = request.step == kAnyStep && !steps.empty() ? *steps.rbegin() : request.step;
  const std::optional<Held> held = ledger_.holder(request.rank, step);
  if (!held)
    return fail(Code::kNotFound, "", fmt::format("the partner copy of rank {} has no such step", request.rank));
  return hand_out(to, request, *held, step, Level::kPartner);
}

void Agent::loaded(const std::shared_ptr<Connection>& from, const Request& request, uint32_t rank,
                   Result<std::shared_ptr<Segment>> segment, bool newest) {
  if (from->gone) return;
  if (!segment) return refuse(from, request, segment.error());
  const uint64_t step = (*segment)->slot(0).step;
  if (request.step != kAnyStep && step != request.step)
    return refuse(from, request, Error(Code::kNotFound, "", fmt::format("storage has step {}", step)));
  // One that was named may be another job's: it is none of what this one has saved until it saves it.
  if (newest) {
    RankState& state = ledger_.rank(rank);
    state = {};
    state.segment = *segment;
    persister_.found(step);
    forget_after(step);
  }
  (void)hand_out(from, request, {rank, *segment, 0}, step, Level::kStorage);
}

Result<void> Agent::hand_out(const std::shared_ptr<Connection>& to, const Request& request, const Held& held,
                             uint64_t step, Level level) {
  RankState& state = ledger_.rank(held.rank);
  const bool pins = held.segment == state.segment && to->rank == held.rank;
  if (pins) state.use[held.buffer].mapped = true;
  Reply reply;
  reply.step = step;
  reply.value[0] = held.buffer;
  reply.value[1] = static_cast<uint64_t>(level);
  reply.value[2] = pins ? 1 : 0;
  answer(to, request, reply, {}, held.segment->fd());
  return {};
}

void Agent::forget_after(uint64_t step, uint64_t came) {
  std::set<uint64_t> alive;
  for (const auto& connection : connections_) {
    if (!connection->gone) alive.insert(connection->number);
  }
  ledger_.forget_after(step, alive, came);
}

Result<void> Agent::persist_asked(const std::shared_ptr<Connection>& from, const Incoming& message) {
  const Request& request = message.request;
  const auto steps = ledger_.common_steps();
  const bool any = request.step == kAnyStep;
  if (steps.empty() || (!any && std::find(steps.begin(), steps.end(), request.step) == steps.end()))
    return fail(Code::kNotFound, "", ledger_.why_not_common(request.step));
  if (persister_.follows())
    return Error(Code::kUnsupported, "", "a checkpoint of several nodes is made by the agent of rank 0")
        .with_hint("ask that one");
  if (ledger_.several_nodes() && !message.text.empty())
    return fail(Code::kUnsupported, message.text, "is not where the other nodes' agents look");
  const uint64_t step = any ? steps.back() : request.step;
  Reply known;
  known.step = step;
  if (message.text.empty() && persister_.persisted() == step) return answer(from, request, known), Result<void>();
  const bool waits = (request.flags & kWait) != 0;
  persister_.want(
      step, message.text,
      !waits ? Persister::Done()
             : [this, to = std::weak_ptr(from), request](uint64_t, const Result<PersistReport>& report) {
                 if (auto waiting = to.lock()) tell_persisted(waiting, request, report);
               });
  persister_.work();  // it holds the step's buffers before whoever asked can save again
  if (!waits) answer(from, request, known);
  return {};
}

void Agent::tell_persisted(const std::shared_ptr<Connection>& to, const Request& request,
                           const Result<PersistReport>& report) {
  Reply reply;
  if (!report) {
    reply.step = request.step;
    reply.status = exit_code(report.error().code);
    return answer(to, request, reply, report.error().text());
  }
  reply.step = report->step;
  reply.value[0] = report->bytes;
  reply.value[1] = report->plan_us + report->write_us;
  reply.value[2] = report->verify_us;
  reply.value[3] = report->sync_us;
  answer(to, request, reply, report->path.string());
}

std::string Agent::status() const {
  JsonWriter out;
  out.open('{');
  out.members("schema", "ckpt.agent/1", "pid", ::getpid(), "directory", options_.directory.string(), "format",
              options_.format, "world", ledger_.world(), "local_world", ledger_.expected(), "newest_step",
              ledger_.newest_common(), "persisted_step", persister_.persisted(), "persisting_step",
              persister_.working_on());
  out.members("saves", counts_.saves, "skipped", counts_.skipped, "waited", counts_.waited, "refused", counts_.refused,
              "aborted", counts_.aborted, "persists", persister_.persists(), "failures", persister_.failures(),
              "deaths", counts_.deaths, "last_error", persister_.last_error());
  status_of_ranks(out, "ranks", false);
  status_of_ranks(out, "partner_copies", true);
  return std::move(out).finish();
}

void Agent::status_of_ranks(JsonWriter& out, const char* name, bool partner_copies) const {
  out.open(name, '[');
  size_t shown = 0;
  for (const auto& [number, state] : ledger_.ranks()) {
    if (state.partner_copy != partner_copies) continue;
    if (shown++ == 256) break;
    out.open('{');
    const auto of_rank = std::find_if(connections_.begin(), connections_.end(),
                                      [rank = number](const auto& c) { return c->rank == rank && !c->gone; });
    out.members("rank", number, "pid", of_rank != connections_.end() ? std::optional((*of_rank)->pid) : std::nullopt,
                "bytes", state.segment ? state.segment->shape().segment_bytes : 0, "buffers",
                state.segment ? state.segment->shape().buffers : 0, "steps", state.steps());
    out.close();
  }
  out.close();
}

}  // namespace ckpt::flash
