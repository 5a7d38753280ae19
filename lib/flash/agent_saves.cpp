// What trainers save: segments, and the buffers that they are given.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "lib/base/io.h"
#include "lib/base/text.h"
#include "lib/flash/agent_loop.h"

namespace ckpt::flash {

namespace {

constexpr uint64_t kLeastObjects = 1 << 20;

bool is_same_file(int a, int b) {
  struct stat first {}, second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

Result<void> Agent::declare(const std::shared_ptr<Connection>& from, Incoming& message) {
  CKPT_TRY_ASSIGN(const uint32_t rank, rank_of(*from));
  if (message.fds.size() != 1) return fail(Code::kUsage, "declare", "comes without a layout");
  // Sealed against writing: it is what was checked that is kept.
  const int fd = message.fds[0].get(), seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK))
    return fail(Code::kUsage, "declare", "has a layout that is not sealed");
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd, "layout"));
  if (static_cast<uint64_t>(st.st_size) > kMostLayoutBytes)
    return fail(Code::kUsage, "declare", "has a layout too large");
  std::string text(static_cast<size_t>(st.st_size), 0);
  CKPT_TRY(io::pread_exact(fd, {reinterpret_cast<std::byte*>(text.data()), text.size()}, 0, "layout"));
  const uint64_t capacity = std::max(message.request.value, kLeastObjects);
  if (capacity > kMostSegmentBytes) return fail(Code::kUsage, "declare", "wants too much room for objects");
  RankState& state = ledger_.rank(rank);
  if (state.segment && state.segment->layout_text() == text &&
      state.segment->shape().objects_capacity >= message.request.value)
    return hand_over(from, message.request, state);
  CKPT_TRY_ASSIGN(const BufferLayout layout, decode_layout(as_bytes(text)));
  const uint64_t bytes = (layout.data_bytes + capacity) * (ledger_.expected() + partner_copies());
  const uint32_t buffers = options_.buffers != 0 ? options_.buffers : buffers_for(bytes);
  CKPT_TRY_ASSIGN(auto segment, Segment::create(rank, ledger_.world(), std::move(text), capacity, buffers));
  if (buffers == 1) {
    tell_(fmt::format("rank {}: memory allows one buffer of {}: a trainer killed in a save leaves no step in memory",
                      rank, human_bytes(layout.data_bytes)));
    if (from->copies && !std::exchange(told_of_copies_, true))
      tell_("partner copies have one buffer, too: while a save is under way, no step is protected");
  }
  replace_segment(state, segment);
  background_.start([this, segment] { segment->touch(give_up_); });
  return hand_over(from, message.request, state);
}

void Agent::replace_segment(RankState& state, std::shared_ptr<Segment> segment) {
  const bool has_steps = state.segment && !state.steps().empty();
  if (has_steps && !state.before) state.before = state.segment, state.use_before = state.use;
  state.segment = std::move(segment);
  state.use = {};
}

Result<void> Agent::hand_over(const std::shared_ptr<Connection>& to, const Request& request, const RankState& state) {
  Reply reply;
  reply.value[0] = state.segment->shape().buffers;
  answer(to, request, reply, {}, state.segment->fd());
  return {};
}

Result<void> Agent::adopt(const std::shared_ptr<Connection>& from, Incoming& message) {
  CKPT_TRY_ASSIGN(const uint32_t rank, rank_of(*from));
  if (message.fds.size() != 1) return fail(Code::kUsage, "adopt", "comes without a segment");
  CKPT_TRY_ASSIGN(auto segment, Segment::adopt(std::move(message.fds[0])));
  if (segment->shape().rank != rank || segment->shape().world != ledger_.world())
    return fail(Code::kUsage, "adopt", "is the segment of another rank");
  RankState& state = ledger_.rank(rank);
  const bool same = state.segment && is_same_file(state.segment->fd(), segment->fd());
  if (!same && state.segment && !state.steps().empty())
    return fail(Code::kBusy, "adopt", "this agent has steps of this rank");
  if (!same) {
    state = {};
    state.partner_copy = from->copies;
    state.segment = std::move(segment);
  }
  for (uint32_t i = 0; i < state.segment->shape().buffers; ++i) {
    if (state.segment->slot(i).sequence % 2 != 0 && !state.use[i].writing) state.segment->clear(i);
    state.use[i].owner = from->number;
    state.use[i].left = 0;
  }
  if (same) return hand_over(from, message.request, state);  // it did not answer for too long, and goes on
  tell_(fmt::format("rank {}: took over the memory of an agent that is gone", rank));
  return hand_over(from, message.request, state);
}

Result<RankState*> Agent::declared(const Connection& from) {
  CKPT_TRY_ASSIGN(const uint32_t rank, rank_of(from));
  RankState& state = ledger_.rank(rank);
  if (!state.segment) return fail(Code::kUsage, "", "a trainer declares its layout first");
  return &state;
}

Result<BufferUse*> Agent::buffer_in(const Connection& from, const Request& request) {
  CKPT_TRY_ASSIGN(RankState * state, declared(from));
  if (request.value >= state->segment->shape().buffers) return fail(Code::kUsage, "", "there is no such buffer");
  return &state->use[request.value];
}

Result<void> Agent::begin(const std::shared_ptr<Connection>& from, const Request& request) {
  CKPT_TRY_ASSIGN(RankState * state, declared(*from));
  if (request.step == kAnyStep) return fail(Code::kUsage, "begin", "names no step");
  uint32_t buffer = 0;
  const Ledger::Choice choice = ledger_.choose(*from->rank, request.step, buffer);
  Reply reply;
  reply.step = request.step;
  if (choice == Ledger::Choice::kGranted) {
    grant(*from, *state, buffer);
    reply.value[0] = buffer;
  } else if (choice == Ledger::Choice::kPinned) {
    reply.status = kPinned;
  } else if (static_cast<IfBusy>(request.flags) == IfBusy::kWait) {
    ++counts_.waited;
    begins_.push_back({from, request, monotonic_us() + std::min<uint64_t>(request.value, 1 << 30) * 1000});
    return {};
  } else if (static_cast<IfBusy>(request.flags) == IfBusy::kFail) {
    ++counts_.refused;
    return fail(Code::kBusy, "", busy_text());
  } else {
    reply.status = kSkipped;
    reply.value[1] = ++counts_.skipped;
    tell_(fmt::format("rank {}: the save of step {} was skipped: {}", *from->rank, request.step, busy_text()));
    return answer(from, request, reply, busy_text()), Result<void>();
  }
  answer(from, request, reply);
  return {};
}

void Agent::grant(const Connection& to, RankState& state, uint32_t buffer) {
  state.use[buffer].writing = true;
  state.use[buffer].owner = to.number;
  state.use[buffer].left = 0;
}

std::string Agent::busy_text() const {
  const std::optional<uint64_t> step = persister_.working_on();
  return step ? fmt::format("step {} is still being written to storage", *step) : "every buffer is in use";
}

void Agent::retry_begins() {
  std::list<WaitingBegin> waiting;
  waiting.swap(begins_);
  for (WaitingBegin& one : waiting) {
    uint32_t buffer = 0;
    const bool late = monotonic_us() >= one.deadline_us;
    const auto choice = ledger_.choose(*one.from->rank, one.request.step, buffer);
    if (choice == Ledger::Choice::kBusy && !late) {
      begins_.push_back(std::move(one));
      continue;
    }
    Reply reply;
    reply.step = one.request.step;
    reply.value[0] = buffer;
    if (choice == Ledger::Choice::kBusy) {
      ++counts_.refused;
      refuse(one.from, one.request, Error(Code::kBusy, "", busy_text() + ", and the time to wait is over"));
      continue;
    }
    if (choice == Ledger::Choice::kPinned)
      reply.status = kPinned;
    else
      grant(*one.from, ledger_.rank(*one.from->rank), buffer);
    answer(one.from, one.request, reply);
  }
}

Result<void> Agent::commit(const std::shared_ptr<Connection>& from, const Request& request) {
  CKPT_TRY_ASSIGN(BufferUse * use, buffer_in(*from, request));
  const auto& segment = ledger_.rank(*from->rank).segment;
  const SlotState slot = segment->slot(static_cast<uint32_t>(request.value));
  if (!use->writing || !slot.complete() || slot.step != request.step)
    return fail(Code::kUsage, "commit", "of a buffer that holds no complete step of this number");
  use->writing = false;
  ledger_.rank(*from->rank).kept_by_former.reset();
  ++counts_.saves;
  if (!from->copies) {
    // Who saves this step makes later ones anew: those of trainers that are gone are no part of that.
    // One that died beside it was part of the same job.
    if (request.step > 0) forget_after(request.step - 1, from->number);
    ledger_.forget_own_after(*from->rank, request.step);
    persister_.saved(request.step, (request.flags & kPersistThis) != 0);
  }
  ledger_.settle();
  Reply reply;
  reply.step = ledger_.newest_common().value_or(kAnyStep);
  answer(from, request, reply);
  return {};
}

Result<void> Agent::abort(const std::shared_ptr<Connection>& from, const Request& request) {
  CKPT_TRY_ASSIGN(BufferUse * use, buffer_in(*from, request));
  const auto buffer = static_cast<uint32_t>(request.value);
  if (std::exchange(use->writing, false) && ledger_.rank(*from->rank).segment->slot(buffer).sequence % 2 != 0)
    ledger_.rank(*from->rank).segment->clear(buffer);
  ++counts_.aborted;
  answer(from, request, {});
  return {};
}

Result<void> Agent::keep(const std::shared_ptr<Connection>& from, const Request& request) {
  CKPT_TRY_ASSIGN(RankState * state, declared(*from));
  state->kept = request.step;
  state->kept_by_former.reset();
  ledger_.settle();
  answer(from, request, {});
  return {};
}

Result<void> Agent::release(const std::shared_ptr<Connection>& from, const Request& request) {
  CKPT_TRY_ASSIGN(BufferUse * use, buffer_in(*from, request));
  use->mapped = false;
  answer(from, request, {});
  return {};
}

}  // namespace ckpt::flash
