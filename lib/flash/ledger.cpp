#include "lib/flash/ledger.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lib/flash/protocol.h"

namespace ckpt::flash {

std::optional<SlotState> RankState::complete(uint32_t buffer) const {
  const SlotState slot = segment->slot(buffer);
  return slot.complete() && !use[buffer].writing ? std::optional(slot) : std::nullopt;
}

std::optional<uint32_t> RankState::buffer_of(uint64_t step) const {
  std::optional<uint32_t> out;
  uint64_t saved_us = 0;
  for (uint32_t i = 0; segment && i < segment->shape().buffers; ++i) {
    const auto slot = complete(i);
    if (!slot || slot->step != step || (out && slot->saved_us <= saved_us)) continue;
    out = i;
    saved_us = slot->saved_us;
  }
  return out;
}

std::set<uint64_t> RankState::steps() const {
  std::set<uint64_t> out;
  for (uint32_t i = 0; segment && i < segment->shape().buffers; ++i) {
    if (const auto slot = complete(i)) out.insert(slot->step);
  }
  for (uint32_t i = 0; before && i < before->shape().buffers; ++i) {
    if (const SlotState slot = before->slot(i); slot.complete()) out.insert(slot.step);
  }
  return out;
}

const RankState* Ledger::find(uint32_t number) const {
  const auto found = ranks_.find(number);
  return found == ranks_.end() ? nullptr : &found->second;
}

void Ledger::give_away_surplus(const std::set<uint32_t>& present) {
  for (auto& [number, state] : ranks_) {
    if (seen() <= expected_) return;
    if (present.count(number) == 0) state.partner_copy = true;
  }
}

size_t Ledger::seen() const {
  return static_cast<size_t>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const auto& entry) { return !entry.second.partner_copy; }));
}

std::vector<uint64_t> Ledger::common_steps() const {
  const size_t own = seen();
  if (own == 0 || own < expected_) return {};
  std::set<uint64_t> common;
  bool first = true;
  for (const auto& [number, state] : ranks_) {
    if (state.partner_copy) continue;
    std::set<uint64_t> steps = state.steps(), both;
    if (first)
      both = std::move(steps);
    else
      std::set_intersection(common.begin(), common.end(), steps.begin(), steps.end(), std::inserter(both, both.end()));
    first = false;
    common = std::move(both);
  }
  return {common.begin(), common.end()};
}

std::optional<uint64_t> Ledger::newest_common() const {
  const std::vector<uint64_t> steps = common_steps();
  return steps.empty() ? std::nullopt : std::optional(steps.back());
}

std::string Ledger::why_not_common(uint64_t step) const {
  std::string out = step == kAnyStep ? "no step is complete on every rank of this node"
                                     : fmt::format("step {} is not complete on every rank of this node", step);
  if (seen() < expected_) return out + fmt::format(": {} of {} ranks have been here", seen(), expected_);
  size_t shown = 0;
  for (const auto& [number, state] : ranks_) {
    if (state.partner_copy) continue;
    if (shown++ == 8) return out + "; ...";
    const auto steps = state.steps();
    out += fmt::format("{} rank {} has {}", shown == 1 ? ":" : ",", number,
                       steps.empty() ? "none" : fmt::format("{}", fmt::join(steps, " and ")));
  }
  return out;
}

uint32_t Ledger::first() const {
  for (const auto& [number, state] : ranks_) {
    if (!state.partner_copy) return number;
  }
  return 0;
}

Ledger::Choice Ledger::choose(uint32_t rank, uint64_t step, uint32_t& buffer) const {
  const RankState& state = ranks_.at(rank);
  const uint32_t buffers = state.segment->shape().buffers;
  std::optional<uint64_t> newest = newest_common();
  if (state.partner_copy) {
    const std::set<uint64_t> steps = state.steps();
    newest = steps.empty() ? std::nullopt : std::optional(*steps.rbegin());
  }
  if (state.kept && state.buffer_of(*state.kept)) newest = state.kept;
  // One of them, should a step that was saved twice be in both.
  const std::optional<uint32_t> keep = newest && buffers > 1 ? state.buffer_of(*newest) : std::nullopt;
  bool pinned = false, found = false;
  uint64_t oldest = 0;
  for (uint32_t i = 0; i < buffers; ++i) {
    const auto slot = state.complete(i);
    const BufferUse& use = state.use[i];
    // Of the same step: it is saved again, over itself only where nothing else is free.
    if (use.readers > 0) continue;
    if (keep == i) continue;
    if (use.mapped) {
      pinned = true;
      continue;
    }
    const uint64_t age = !slot ? 0 : slot->step == step ? 1 : slot->step + 2;
    if (found && age >= oldest) continue;
    found = true;
    oldest = age;
    buffer = i;
  }
  return found ? Choice::kGranted : pinned ? Choice::kPinned : Choice::kBusy;
}

bool Ledger::needs_before(uint32_t number, const RankState& state) const {
  const std::optional<uint64_t> kept = state.kept ? state.kept : state.kept_by_former;
  if (kept && !state.buffer_of(*kept) && holder(number, *kept)) return true;
  uint32_t complete = 0;
  for (uint32_t i = 0; i < state.segment->shape().buffers; ++i)
    complete += state.complete(i) ? 1 : 0;
  return several_nodes() && !state.partner_copy && complete < state.segment->shape().buffers;
}

void Ledger::settle() {
  for (auto& [number, state] : ranks_) {
    if (!state.partner_copy || !state.before || !state.segment || needs_before(number, state)) continue;
    for (uint32_t i = 0; i < state.segment->shape().buffers; ++i) {
      if (state.complete(i)) state.before.reset();
    }
  }
  const std::optional<uint64_t> newest = newest_common();
  if (!newest) return;
  for (const auto& [number, state] : ranks_) {
    if (!state.partner_copy && !state.buffer_of(*newest)) return;
  }
  for (auto& [number, state] : ranks_) {
    if (!state.partner_copy && state.before && !needs_before(number, state)) state.before.reset();
  }
}

void Ledger::owner_left(uint64_t connection, uint64_t connections) {
  for (auto& [number, state] : ranks_) {
    for (auto* uses : {&state.use, &state.use_before}) {
      for (BufferUse& use : *uses) {
        if (use.owner == connection) use.left = connections;
      }
    }
  }
}

namespace {

/// Clears the buffers with a later step than this one, of which `forgets` says so.
template <class Forgets>
void clear_after(RankState& state, uint64_t step, Forgets forgets) {
  auto clear = [&](const std::shared_ptr<Segment>& segment, const std::array<BufferUse, kMostBuffers>& uses) {
    for (uint32_t i = 0; segment && i < segment->shape().buffers; ++i) {
      const SlotState slot = segment->slot(i);
      if (slot.complete() && slot.step > step && !uses[i].writing && forgets(uses[i])) segment->clear(i);
    }
  };
  clear(state.segment, state.use);
  clear(state.before, state.use_before);
}

}  // namespace

void Ledger::forget_after(uint64_t step, const std::set<uint64_t>& alive, uint64_t came) {
  for (auto& [number, state] : ranks_) {
    clear_after(state, step, [&](const BufferUse& use) { return alive.count(use.owner) == 0 && use.left < came; });
  }
}

void Ledger::forget_own_after(uint32_t rank, uint64_t step) {
  clear_after(ranks_[rank], step, [](const BufferUse&) { return true; });
}

std::optional<Held> Ledger::holder(uint32_t number, uint64_t step) const {
  const RankState* state = find(number);
  if (state == nullptr) return std::nullopt;
  if (auto buffer = state->buffer_of(step)) return Held{number, state->segment, *buffer};
  for (uint32_t i = 0; state->before && i < state->before->shape().buffers; ++i) {
    const SlotState slot = state->before->slot(i);
    if (slot.complete() && slot.step == step) return Held{number, state->before, i};
  }
  return std::nullopt;
}

std::vector<Held> Ledger::holders(uint64_t step) const {
  std::vector<Held> out;
  for (const auto& [number, state] : ranks_) {
    if (state.partner_copy) continue;
    if (auto held = holder(number, step)) out.push_back(std::move(*held));
  }
  return out;
}

}  // namespace ckpt::flash
