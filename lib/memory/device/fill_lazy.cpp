// Filling while the process runs (device_fill.h).
#include <fmt/format.h>

#include <algorithm>

#include "lib/memory/device/fill.h"

namespace ckpt::capture {

/// Pieces that a launch waits for, and all that they are known to lead to.
Result<void> DeviceFill::take_demands(std::set<size_t>& urgent) {
  CKPT_TRY_ASSIGN(const auto demand, target_.next_demand(0));
  std::vector<size_t> work(urgent.begin(), urgent.end());
  for (uint64_t id : demand.value_or(std::vector<uint64_t>())) {
    auto found = std::find_if(pieces_.begin(), pieces_.end(),
                              [&](const FilledAllocation& piece) { return piece.image->id == id; });
    if (found == pieces_.end()) continue;
    const auto index = static_cast<size_t>(found - pieces_.begin());
    if (std::find(report_.demanded.begin(), report_.demanded.end(), id) == report_.demanded.end())
      report_.demanded.push_back(id);
    if (urgent.insert(index).second) work.push_back(index);
  }
  while (!work.empty()) {
    const size_t at = work.back();
    work.pop_back();
    for (size_t next : pieces_[at].leads_to) {
      if (urgent.insert(next).second) work.push_back(next);
    }
  }
  return {};
}

/// Tells of what is there with everything that it leads to.
Result<void> DeviceFill::tell() {
  std::vector<bool> waits(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) waits[i] = !pieces_[i].there;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const auto& to = pieces_[i].leads_to;
      if (waits[i] || std::none_of(to.begin(), to.end(), [&](size_t next) { return waits[next]; })) continue;
      waits[i] = changed = true;
    }
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (waits[i] || pieces_[i].told) continue;
    CKPT_TRY(target_.filled(pieces_[i].image->id));
    pieces_[i].told = true;
  }
  return {};
}

Result<void> DeviceFill::fill_in_turn() {
  std::set<size_t> urgent;
  for (size_t left = pieces_.size(); left != 0; --left) {
    CKPT_TRY(take_demands(urgent));
    auto wanted = std::find_if(urgent.begin(), urgent.end(), [&](size_t i) { return !pieces_[i].there; });
    auto first =
        std::find_if(pieces_.begin(), pieces_.end(), [](const FilledAllocation& piece) { return !piece.there; });
    CKPT_TRY(fill(wanted != urgent.end() ? pieces_[*wanted] : *first, true));
    CKPT_TRY(tell());
  }
  return {};
}

Result<FillReport> DeviceFill::lazy() {
  if (!memory_.launches.empty()) {
    CKPT_TRY(eager());
    CKPT_TRY(target_.unlock_api());
    return report_;
  }
  std::vector<uint64_t> ids;
  for (const FilledAllocation& piece : pieces_) ids.push_back(piece.image->id);
  auto fill_behind_lock = [&]() -> Result<void> {
    CKPT_TRY(target_.begin_fill(ids));
    CKPT_TRY(target_.unlock_api());
    return fill_in_turn();
  };
  Result<void> filled = fill_behind_lock();
  if (filled) return report_;
  Error error = std::move(filled).error();
  if (error.code == Code::kNotFound) return error;
  return std::move(error).with_target(
      fmt::format("process {} waits for device memory that will not come: end it", target_.pid()));
}

}  // namespace ckpt::capture
