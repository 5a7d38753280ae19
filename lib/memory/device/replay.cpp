#include "lib/memory/device/replay.h"

#include <algorithm>
#include <map>

namespace ckpt::capture {

using device::Launch;
using device::Range;

namespace {

bool covers(const std::vector<Range>& ranges, uint64_t chunk) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& r) {
    return r.contains(Range{{chunk}, kDeviceChunk});
  });
}

/// Looks for a slice; what stands in the way is taken out, until nothing does.
class Planner {
 public:
  explicit Planner(const ReplayProblem& problem) : problem_(problem), log_(*problem.log), bad_(log_.size()) {
    for (size_t i = 0; i < log_.size(); ++i) {
      each_chunk(log_[i].writes, [&](uint64_t chunk) { writers_[chunk].push_back(i); });
      bad_[i] = !log_[i].replayable || log_[i].record.size() > store::kMaxLaunchRecord || !inside(log_[i].reads) ||
                !inside(log_[i].writes);
    }
    for (uint64_t chunk : problem.wanted) {
      if (writers_.count(chunk) != 0) chunks_.insert(chunk);
    }
  }

  ReplayPlan plan() {
    while (!chunks_.empty() && !try_slice()) {}
    ReplayPlan out;
    out.given_up = given_up_;
    if (chunks_.empty()) return out;
    for (size_t i = 0; i < log_.size(); ++i) {
      if (!selected_[i]) continue;
      out.launches.push_back(i);
      for (const Range& range : log_[i].reads) out.touched_bytes += range.size;
      for (const Range& range : log_[i].writes) out.touched_bytes += range.size;
    }
    out.chunks = chunks_;
    return out;
  }

 private:
  template <class Each>
  void each_chunk(const std::vector<Range>& ranges, Each each) {
    for_chunks(ranges, [&](uint64_t chunk) {
      ++looks_;
      each(chunk);
    });
  }
  /// Nothing is made: the search would take too long.
  bool abandon() {
    chunks_.clear();
    return given_up_ = true;
  }
  bool inside(const std::vector<Range>& ranges) const {
    return std::all_of(ranges.begin(), ranges.end(), [&](const Range& range) {
      return std::any_of(problem_.owned.begin(), problem_.owned.end(),
                         [&](const Range& owned) { return owned.contains(range); });
    });
  }
  bool written_after(uint64_t chunk, size_t launch) const {
    auto found = writers_.find(chunk);
    return found != writers_.end() && found->second.back() > launch;
  }
  bool written_before(uint64_t chunk, size_t launch) const {
    auto found = writers_.find(chunk);
    return found != writers_.end() && found->second.front() < launch;
  }

  /// Backwards over the log. False: something was taken out, and the slice is to be looked for anew.
  bool try_slice() {
    // By chunk: the launches that read it as it was before them; for chunks to be made, one number past the last
    // launch.
    std::map<uint64_t, std::set<size_t>> need;
    for (uint64_t chunk : chunks_) need[chunk].insert(log_.size());
    looks_ += chunks_.size();
    selected_.assign(log_.size(), false);
    for (size_t i = log_.size(); i-- != 0;) {
      if (looks_ > problem_.most_looks) return abandon();
      each_chunk(log_[i].writes, [&](uint64_t chunk) { selected_[i] = selected_[i] || need.count(chunk) != 0; });
      if (!selected_[i]) continue;
      if (bad_[i]) return give_up(i, need);
      if (problem_.whole_writes) {
        each_chunk(log_[i].writes, [&](uint64_t chunk) {
          if (covers(log_[i].writes, chunk)) need.erase(chunk);
        });
      }
      each_chunk(log_[i].reads, [&](uint64_t chunk) {
        if (chunks_.count(chunk) == 0 && !written_after(chunk, i) && !writes(i, chunk)) return;  // as it is at the stop
        if (!written_before(chunk, i)) bad_[i] = true;  // as it was at the start, which is gone
        else need[chunk].insert(i);
      });
      if (bad_[i]) return give_up(i, need);
    }
    return true;
  }
  bool writes(size_t launch, uint64_t chunk) const {
    const auto& positions = writers_.find(chunk);
    return positions != writers_.end() &&
           std::binary_search(positions->second.begin(), positions->second.end(), launch);
  }
  /// A launch that cannot be run again: what it writes is not made, and who needs it as it left it cannot be run
  /// either.
  bool give_up(size_t launch, const std::map<uint64_t, std::set<size_t>>& need) {
    each_chunk(log_[launch].writes, [&](uint64_t chunk) {
      auto found = need.find(chunk);
      if (found == need.end()) return;
      for (size_t reader : found->second) {
        if (reader == log_.size()) chunks_.erase(chunk);
        else if (written_after(chunk, reader) || writes(reader, chunk))
          bad_[reader] = true;  // else it is there, copied
      }
    });
    return false;
  }

  const ReplayProblem& problem_;
  const std::vector<Launch>& log_;
  std::vector<bool> bad_, selected_;
  std::map<uint64_t, std::vector<size_t>> writers_;
  std::set<uint64_t> chunks_;
  uint64_t looks_ = 0;
  bool given_up_ = false;
};

}  // namespace

ReplayPlan plan_replay(const ReplayProblem& problem) { return Planner(problem).plan(); }

namespace {

/// Of all launches of a process: they are for people, and the manifest has a largest size. `inspect --graph` says how
/// many it draws without.
constexpr size_t kMostRanges = 200'000;

std::vector<store::DeviceRange> stored(const std::vector<device::Range>& ranges) {
  std::vector<store::DeviceRange> out;
  for (const device::Range& range : ranges) out.push_back({range.start.value, range.size});
  return out;
}

}  // namespace

Result<void> describe_replay(const ReplayDelta::Source& source, store::DeviceMemory& memory) {
  size_t told = 0;
  for (const Launch& launch : source.launches) {
    if (launch.record.size() > store::kMaxLaunchRecord)
      return fail(Code::kNoRoom, "", "the record of a launch is too large for an image");
    memory.launches.push_back({launch.sequence, {launch.record.begin(), launch.record.end()}, launch.name, {}, {}});
    told += launch.reads.size() + launch.writes.size();
    if (told > kMostRanges) continue;
    memory.launches.back().reads = stored(launch.reads), memory.launches.back().writes = stored(launch.writes);
  }
  for (store::DeviceAllocation& allocation : memory.allocations) {
    for (uint64_t i = 0; i < allocation.size / kDeviceChunk; ++i) {
      if (source.chunks.count(allocation.address + i * kDeviceChunk) == 0) continue;
      auto& runs = allocation.recomputed;
      if (!runs.empty() && runs.back().first + runs.back().count == i) ++runs.back().count;
      else runs.push_back({i, 1});
    }
  }
  return {};
}

}  // namespace ckpt::capture
