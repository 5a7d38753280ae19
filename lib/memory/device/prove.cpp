// The attempt that proves a replay (device_replay.h).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lib/base/trace.h"
#include "lib/memory/device/replay.h"

namespace ckpt::capture {

using device::Address;
using device::Launch;
using device::Range;

namespace {

/// Device-to-device bytes a byte over the bus is worth (2 TB/s payload against 50 GB/s).
constexpr uint64_t kBusRatio = 40;

/// More than a plan would look at: a launch may name all of the address space.
bool names_too_much(const std::vector<Launch>& log, uint64_t most_looks) {
  uint64_t left = most_looks;
  auto too_much = [&](const Range& range) {
    const uint64_t chunks = range.size / kDeviceChunk + 2;
    if (chunks > left) return true;
    left -= chunks;
    return false;
  };
  return std::any_of(log.begin(), log.end(), [&](const Launch& launch) {
    return std::any_of(launch.reads.begin(), launch.reads.end(), too_much) ||
           std::any_of(launch.writes.begin(), launch.writes.end(), too_much);
  });
}

/// A chunk that changed since recording began, and no launch says that it may write it.
bool hidden_write(DeviceCapture& capture, size_t source, const std::vector<Launch>& log) {
  std::set<uint64_t> written;
  for (const Launch& launch : log) for_chunks(launch.writes, [&](uint64_t at) { written.insert(at); });
  for (const DeviceRegion* region : capture.map().regions_of(source)) {
    if (region->start.empty()) continue;
    for (size_t i = 0; i < region->chunks(); ++i) {
      if (region->live[i] != region->start[i] && written.count(region->address(i).value) == 0) return true;
    }
  }
  return false;
}

/// Chunks of several devices, set aside.
class BackupCopy {
 public:
  BackupCopy(DeviceCapture& capture, uint64_t budget) : capture_(capture), budget_(budget) {}
  BackupCopy(const BackupCopy&) = delete;
  BackupCopy& operator=(const BackupCopy&) = delete;
  ~BackupCopy() {
    for (SetAside& place : places_) {
      if (auto ring = capture_.ring(*place.device)) (*ring)->retire(std::move(place.buffer));
    }
  }
  /// kNoRoom: the budget, or the device.
  Result<void> take(const std::vector<ChunkRef>& chunks) {
    for (device::Device* device : capture_.map().devices()) {
      SetAside place{device, nullptr, {}};
      for (const ChunkRef& ref : chunks) {
        if (ref.region->uuid == device->properties().uuid) place.chunks.push_back(ref);
      }
      if (place.chunks.empty()) continue;
      const uint64_t size = place.chunks.size() * kDeviceChunk;
      if (size > budget_) return fail(Code::kNoRoom, "", "more than the budget would be set aside");
      CKPT_TRY_ASSIGN(StagingRing * ring, capture_.ring(*device));
      CKPT_TRY_ASSIGN(place.buffer, device->allocate(size));
      std::vector<StagingRing::Move> moves = place.moves();
      for (auto& move : moves) std::swap(move.to, move.from);
      places_.push_back(std::move(place));
      CKPT_TRY(ring->within_device(moves, kDeviceChunk));
    }
    return {};
  }
  Result<void> put_back() {
    for (SetAside& place : places_) {
      CKPT_TRY_ASSIGN(StagingRing * ring, capture_.ring(*place.device));
      CKPT_TRY(ring->within_device(place.moves(), kDeviceChunk));
    }
    return {};
  }

 private:
  struct SetAside {
    device::Device* device;
    std::unique_ptr<device::Buffer> buffer;
    std::vector<ChunkRef> chunks;
    std::vector<StagingRing::Move> moves() const {
      std::vector<StagingRing::Move> out;
      for (size_t i = 0; i < chunks.size(); ++i) {
        out.push_back({chunks[i].region->local_address(chunks[i].chunk), buffer->range().start + i * kDeviceChunk});
      }
      return out;
    }
  };
  DeviceCapture& capture_;
  uint64_t budget_;
  std::vector<SetAside> places_;
};

/// One source's attempt.
class Attempt {
 public:
  Attempt(DeviceCapture& capture, size_t source, const std::vector<Launch>& log, const DeviceOptions& options)
      : capture_(capture),
        target_(*capture.map().sources()[source].target),
        source_(source),
        log_(log),
        options_(options) {}

  using Chunks = std::set<uint64_t>;  ///< addresses
  /// Those of the plan that came out right: if all, it is proven. Memory is as it was, whatever the answer; where it is
  /// not, kTargetAltered.
  Result<Chunks> prove(const ReplayPlan& plan) {
    trace::Span span("device replay");
    BackupCopy backup(capture_, options_.cow_budget);
    CKPT_TRY(backup.take(may_be_written(plan)));
    Result<Chunks> outcome = run(plan);
    Result<void> back = put_back(backup);
    if (!back) back = put_back(backup);  // a second time, for what passes
    if (back) return outcome;
    if (back.error().code == Code::kNotFound) return std::move(back).error();
    return Error(Code::kTargetAltered, fmt::format("process {}", target_.pid()),
                 "device memory could not be put back after an attempt to compute it again")
        .with_cause(back.error().text())
        .with_target(fmt::format("process {} has wrong device memory: end it", target_.pid()));
  }

 private:
  /// Everything that any launch may write, as far as their arguments tell, and what was not there when recording began:
  /// a kernel that lies about one chunk writes another of these, or one that `hidden_write` finds.
  std::vector<ChunkRef> may_be_written(const ReplayPlan& plan) {
    std::set<uint64_t> addresses = plan.chunks;
    for (const Launch& launch : log_) for_chunks(launch.writes, [&](uint64_t at) { addresses.insert(at); });
    std::vector<ChunkRef> out;
    for (DeviceRegion* region : capture_.map().regions_of(source_)) {
      for (size_t i = 0; i < region->chunks(); ++i) {
        if (region->start.empty() || addresses.count(region->address(i).value) != 0) out.push_back({region, i});
      }
    }
    return out;
  }
  Result<void> put_back(BackupCopy& backup) {
    CKPT_TRY(target_.drain(options_.stop_timeout_us));
    CKPT_TRY(backup.put_back());
    return check_unaltered();
  }
  Result<Chunks> run(const ReplayPlan& plan) {
    before_.clear();
    for (DeviceRegion* region : capture_.map().regions()) before_[region] = region->live;
    const std::vector<ChunkRef> made = made_by(plan);
    CKPT_TRY(clear(made));
    for (size_t i : plan.launches) CKPT_TRY(target_.replay(log_[i]));
    CKPT_TRY(target_.drain(options_.stop_timeout_us));
    CKPT_TRY(capture_.hash_live());
    Chunks right;
    for (const ChunkRef& ref : made) {
      if (ref.region->live[ref.chunk] == before_[ref.region][ref.chunk])
        right.insert(ref.region->address(ref.chunk).value);
    }
    return right;
  }
  std::vector<ChunkRef> made_by(const ReplayPlan& plan) {
    std::vector<ChunkRef> out;
    for (DeviceRegion* region : capture_.map().regions_of(source_)) {
      const Range range = region->allocation.range();
      for (auto at = plan.chunks.lower_bound(range.start.value); at != plan.chunks.end() && *at < range.end().value;
           ++at) {
        out.push_back({region, (*at - range.start.value) / kDeviceChunk});
      }
    }
    return out;
  }
  /// Zeros, as a restore has them before it runs the launches.
  Result<void> clear(const std::vector<ChunkRef>& made) {
    for (device::Device* device : capture_.map().devices()) {
      std::vector<Address> chunks;
      for (const ChunkRef& ref : made) {
        if (ref.region->uuid == device->properties().uuid) chunks.push_back(ref.region->local_address(ref.chunk));
      }
      if (chunks.empty()) continue;
      CKPT_TRY_ASSIGN(StagingRing * ring, capture_.ring(*device));
      CKPT_TRY(ring->clear(chunks, kDeviceChunk));
    }
    return {};
  }
  Result<void> check_unaltered() {
    if (before_.empty()) return {};
    CKPT_TRY(capture_.hash_live());
    for (const auto& [region, hashes] : before_) {
      auto differs = std::mismatch(hashes.begin(), hashes.end(), region->live.begin()).first;
      if (differs == hashes.end()) continue;
      const Address at = region->address(static_cast<size_t>(differs - hashes.begin()));
      return fail(Code::kTargetAltered, fmt::format("device memory at {:#x}", at.value),
                  "was written by a kernel that does not say so");
    }
    return {};
  }

  DeviceCapture& capture_;
  device::Target& target_;
  size_t source_;
  const std::vector<Launch>& log_;
  const DeviceOptions& options_;
  std::map<const DeviceRegion*, std::vector<device::ChunkHash>> before_;
};

/// Nobody knows whether a kernel reads or writes through a pointer, so its launch names both; many only write what they
/// make.
std::vector<Launch> without_reads_of_writes(std::vector<Launch> log) {
  for (Launch& launch : log) {
    std::erase_if(launch.reads, [&](const Range& read) {
      return std::find(launch.writes.begin(), launch.writes.end(), read) != launch.writes.end();
    });
  }
  return log;
}

/// What of one source is computed again.
Result<ReplayDelta::Source> choose(DeviceCapture& capture, size_t source, DeltaMode mode,
                                   const DeviceOptions& options) {
  ReplayDelta::Source out;
  auto log = capture.map().sources()[source].target->recorded();
  if (!log && log.error().code == Code::kNotFound) return std::move(log).error();
  if (!log) {
    out.why_not = log.error().text();
    return out;
  }
  out.recorded = log->size();
  ReplayProblem problem;
  problem.log = &*log;
  for (DeviceRegion* region : capture.map().regions_of(source)) {
    problem.owned.push_back(region->allocation.range());
    for (size_t i = 0; i < region->chunks(); ++i) {
      if (!region->is_current(i)) problem.wanted.insert(region->address(i).value);
    }
  }
  constexpr char kTooMuch[] = "the launches name more memory than can be looked into at a stop";
  if (names_too_much(*log, problem.most_looks)) {
    out.why_not = kTooMuch;
    return out;
  }
  if (hidden_write(capture, source, *log)) {
    out.why_not = "a kernel writes what its arguments do not say";
    return out;
  }
  out.why_not = "no launch can be run again";
  const std::vector<Launch> written_only = without_reads_of_writes(*log);
  struct Belief {
    const std::vector<Launch>* log;
    bool whole_writes;
  };
  for (const Belief& belief : {Belief{&*log, true}, Belief{&*log, false}, Belief{&written_only, false}}) {
    problem.log = belief.log, problem.whole_writes = belief.whole_writes;
    ReplayPlan plan = plan_replay(problem);
    if (plan.given_up) out.why_not = kTooMuch;
    // The boldest belief once more for the chunks that came out right, alone: without the others they begin
    // differently.
    for (bool again = belief.log == &*log; !plan.chunks.empty(); again = true) {
      if (mode == DeltaMode::kAuto && plan.touched_bytes / kBusRatio > plan.chunks.size() * kDeviceChunk) {
        out.why_not = "copying moves fewer bytes";
        break;
      }
      auto made = Attempt(capture, source, *log, options).prove(plan);
      if (!made && made.error().code != Code::kNoRoom && made.error().code != Code::kUnsupported)
        return std::move(made).error();
      out.why_not = made ? "what was computed again differs" : made.error().text();
      if (made && *made == plan.chunks) {
        for (size_t i : plan.launches) out.launches.push_back((*log)[i]);
        out.chunks = std::move(plan.chunks);
        out.why_not.clear();
        return out;
      }
      if (!made || again) break;
      plan.chunks = std::move(*made);
    }
  }
  return out;
}

Result<ReplayDelta> take_delta(DeviceCapture& capture, DeltaMode mode, const DeviceOptions& options) {
  ReplayDelta out;
  CKPT_TRY(capture.scan());
  for (size_t source = 0; source < capture.map().sources().size(); ++source) {
    auto& chosen = out.sources.emplace_back();
    if (mode == DeltaMode::kCopy) continue;
    CKPT_TRY_ASSIGN(chosen, choose(capture, source, mode, options));
  }
  CKPT_TRY_ASSIGN(out.pass, capture.copy_missing([&](const ChunkRef& ref) {
    return out.sources[ref.region->source].chunks.count(ref.region->address(ref.chunk).value) != 0;
  }));
  return out;
}

}  // namespace

Result<ReplayDelta> delta_with_replay(DeviceCapture& capture, DeltaMode mode, const DeviceOptions& options) {
  Result<ReplayDelta> out = take_delta(capture, mode, options);
  Result<void> ended = capture.end_recording();
  if (out && !ended) return std::move(ended).error();
  return out;
}

}  // namespace ckpt::capture
