#include "lib/memory/device/replay.h"

#include "lib/memory/device/fill.h"
#include "tests/support/why.h"
#include "tests/unit/memory/device_helpers.h"

using namespace ckpt;
using namespace ckpt::capture;
using namespace ckpt::capture::test;

namespace {

/// Chunk number n of a memory that starts at one gigabyte.
Range chunk(uint64_t n, uint64_t count = 1) { return {{(uint64_t{1} << 30) + n * kDeviceChunk}, count * kDeviceChunk}; }

using Numbers = std::vector<size_t>;
struct Log {
  std::vector<Launch> launches;
  void add(std::vector<Range> reads, std::vector<Range> writes, bool replayable = true) {
    launches.push_back({launches.size(), std::move(reads), std::move(writes), replayable, "", ""});
  }
  ReplayPlan plan(std::set<uint64_t> chunks, bool whole = true) const {
    ReplayProblem problem;
    problem.log = &launches;
    for (uint64_t n : chunks) problem.wanted.insert(chunk(n).start.value);
    problem.owned = {chunk(0, 100), chunk(1000, 20'000)};
    problem.whole_writes = whole;
    return plan_replay(problem);
  }
};
std::set<uint64_t> numbers(const ReplayPlan& plan) {
  std::set<uint64_t> out;
  for (uint64_t address : plan.chunks) out.insert((address - (uint64_t{1} << 30)) / kDeviceChunk);
  return out;
}
using Set = std::set<uint64_t>;

DeviceOptions options() {
  DeviceOptions out = small_options();
  out.staging.block_bytes = 16 * kDeviceChunk;
  return out;
}

/// What a recorded run of a process came to, and the process made again from it.
struct Run {
  Result<ReplayDelta> delta = Error();
  Content truth, restored;
  uint64_t replayed = 0;
  Result<void> whole;
};

/// Runs `program` under recording, takes the delta, checks that the process is as it was, and restores.
Run run(World& world, const std::vector<Allocation>& mine, DeltaMode mode,
        const std::function<void(EmulatedTarget&)>& program, const DeviceOptions& opts = options()) {
  Run out;
  MemorySink sink;
  store::DeviceMemory memory;
  std::vector<std::vector<ChunkHash>> hashes;
  {
    DeviceCapture capture(world.sources(), world.device_list(), sink, opts);
    REQUIRE(capture.iterate());
    REQUIRE(capture.begin_recording(1000));
    program(world.target());
    auto stop = DeviceStop::begin({&world.target()}, 60 * kSecond);
    REQUIRE(stop);
    out.truth = peek_all(world, {mine});
    out.delta = delta_with_replay(capture, mode, opts);
    CHECK(peek_all(world, {mine}) == out.truth);
    if (!out.delta) return out;
    REQUIRE(capture.say_kept());
    for (DeviceRegion* region : capture.map().regions()) {
      memory.allocations.push_back(
          {region->allocation.id, region->allocation.address.value, region->allocation.size, region->uuid, 0, {}});
      hashes.push_back(region->image);
    }
    memory.space = 3;
    REQUIRE(describe_replay(out.delta->sources[0], memory));
  }
  World next(static_cast<int>(world.gpus.size()), 0, 5);
  next.targets.push_back(std::make_unique<EmulatedTarget>(100, next.gpus, kernels(), mine));
  REQUIRE(next.target().lock_api(kSecond));
  DeviceFill fill(next.target(), memory, hashes, next.device_list(), sink, opts.staging);
  REQUIRE(fill.attach());
  auto filled = fill.eager();
  if (!filled) out.whole = std::move(filled).error();
  out.restored = peek_all(next, {mine});
  out.replayed = next.target().replayed();
  next.check_sound();
  world.check_sound();
  return out;
}

}  // namespace

TEST_CASE("replay plan: only what the wanted chunks depend on") {
  Log log;
  log.add({chunk(0)}, {chunk(1)});  // 0: superseded
  log.add({chunk(0)}, {chunk(1)});  // 1
  log.add({chunk(1)}, {chunk(2)});  // 2
  log.add({chunk(0)}, {chunk(3)});  // 3: not wanted
  log.add({chunk(2)}, {chunk(4)});  // 4
  CHECK(log.plan({4}).launches == Numbers{4});  // what it reads is there as it was
  CHECK(log.plan({2, 4}).launches == Numbers{2, 4});
  CHECK(log.plan({1, 2, 4}).launches == Numbers{1, 2, 4});
  CHECK(log.plan({1, 2, 4}, false).launches == Numbers{0, 1, 2, 4});
  CHECK(log.plan({3}).launches == Numbers{3});
  CHECK(log.plan({0}).chunks.empty());
  CHECK(log.plan({}).launches.empty());
}

TEST_CASE("replay plan: what changed in place is gone as it was, and what needs it is copied") {
  Log log;
  log.add({chunk(0)}, {chunk(1)});            // 0: reads the old 0
  log.add({chunk(0), chunk(1)}, {chunk(0)});  // 1: changes 0 in place
  log.add({chunk(0)}, {chunk(2)});            // 2: reads the new 0
  const ReplayPlan plan = log.plan({0, 1, 2});
  CHECK(numbers(plan) == Set{2});
  CHECK(plan.launches == Numbers{2});
}

TEST_CASE("replay plan: an intermediate that was overwritten is made again, if it can be") {
  Log log;
  log.add({chunk(0)}, {chunk(9)});  // 0
  log.add({chunk(9)}, {chunk(1)});  // 1
  log.add({chunk(5)}, {chunk(9)});  // 2: the same room used for something else
  log.add({chunk(9)}, {chunk(2)});  // 3
  CHECK(log.plan({1}).launches == Numbers{0, 1});
  CHECK(log.plan({1, 2}).launches == Numbers{0, 1, 3});
  CHECK(log.plan({1, 2, 9}).launches == Numbers{0, 1, 2, 3});
  log.launches[0].replayable = false;
  CHECK(numbers(log.plan({1, 2, 9})) == Set{2, 9});
}

TEST_CASE("replay plan: launches that cannot be run again, or touch what is not owned") {
  Log log;
  log.add({chunk(0)}, {chunk(1)}, false);
  log.add({chunk(1)}, {chunk(2)});
  log.add({chunk(200)}, {chunk(3)});
  log.add({chunk(3)}, {chunk(4)});
  CHECK(numbers(log.plan({1, 2, 3, 4})) == Set{2, 4});
  log.launches[3].record.resize(store::kMaxLaunchRecord + 1);  // an image does not take it
  CHECK(numbers(log.plan({1, 2, 3, 4})) == Set{2});
}

TEST_CASE("replay plan: a log in which all must be given up, one by one, is given up as a whole") {
  Log log;
  Set all;
  for (uint64_t i = 0; i < 20'000; ++i) {
    log.add({chunk(1000 + i)}, {chunk(1000 + i)});  // in place: as it was is gone
    all.insert(1000 + i);
  }
  const ReplayPlan plan = log.plan(all);
  CHECK(plan.given_up);
  CHECK(plan.chunks.empty());
  CHECK_FALSE(log.plan({1000, 1001}).given_up);
}

TEST_CASE("replay: forward passes are computed again, byte for byte, and fewer launches than were recorded") {
  World world;
  const Allocation weights = world.allocate(4), inner = world.allocate(4), outer = world.allocate(4),
                   state = world.allocate(2);
  REQUIRE(world.target().launch(0, fill(weights.range(), 3)));
  REQUIRE(world.target().launch(0, fill(state.range(), 9)));
  REQUIRE(world.target().synchronize());
  auto program = [&](EmulatedTarget& target) {
    for (int i = 0; i < 10; ++i) {
      REQUIRE(target.launch(0, step(weights.range(), inner.range())));
      REQUIRE(target.launch(0, step(inner.range(), outer.range())));
      REQUIRE(target.launch(0, mix(part(outer, 0, 2), state.range())));  // in place
    }
  };
  const Run again = run(world, {weights, inner, outer, state}, DeltaMode::kRecompute, program);
  REQUIRE_MESSAGE(again.delta, why(again.delta));
  REQUIRE(again.whole);
  CHECK(again.restored == again.truth);
  CHECK(again.delta->sources[0].recorded == 30);
  CHECK(again.replayed == 2);
  CHECK(again.delta->sources[0].chunks.size() == 8);
  CHECK(again.delta->pass.copied == 2);
  // The same run, copied.
  World other;
  const std::vector<Allocation> mine = {other.allocate(4), other.allocate(4), other.allocate(4), other.allocate(2)};
  REQUIRE(other.target().launch(0, fill(mine[0].range(), 3)));
  REQUIRE(other.target().synchronize());
  const Run copied = run(other, mine, DeltaMode::kCopy, [&](EmulatedTarget& target) {
    REQUIRE(target.launch(0, step(mine[0].range(), mine[1].range())));
    REQUIRE(target.launch(0, step(mine[1].range(), mine[2].range())));
  });
  REQUIRE(copied.delta);
  CHECK(copied.restored == copied.truth);
  CHECK(copied.delta->pass.copied == 8);
  CHECK(copied.replayed == 0);
}

TEST_CASE("replay: auto computes again where that moves fewer bytes") {
  for (const bool expensive : {false, true}) {
    World world;
    const Allocation from = world.allocate(8), to = world.allocate(1);
    REQUIRE(world.target().launch(0, fill(from.range(), 3)));
    REQUIRE(world.target().synchronize());
    const Run out = run(world, {from, to}, DeltaMode::kAuto, [&](EmulatedTarget& target) {
      KernelCall call = step(part(from, 0, 1), to.range());
      if (expensive) call.reads.assign(60, from.range());  // as often as a matrix product reads its operands
      REQUIRE(target.launch(0, call));
    });
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);
    CHECK(out.replayed == (expensive ? 0 : 1));
  }
}

TEST_CASE("replay: a kernel that lies or depends on something else is found out, and its chunks are copied") {
  World world;
  const Allocation a = world.allocate(2), b = world.allocate(2), c = world.allocate(2);
  REQUIRE(world.target().launch(0, fill(a.range(), 3)));
  REQUIRE(world.target().synchronize());
  SUBCASE("a hidden write to memory that nothing says it writes") {
    const Run out = run(world, {a, b, c}, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      REQUIRE(target.launch(0, step(a.range(), b.range())));
      REQUIRE(target.launch(0, lie(b.range(), c.range())));
    });
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);
    CHECK(out.replayed == 0);
    CHECK(out.delta->sources[0].why_not == "a kernel writes what its arguments do not say");
  }
  SUBCASE("a hidden write to memory that another one says it writes") {
    const Run out = run(world, {a, b, c}, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      REQUIRE(target.launch(0, step(a.range(), b.range())));
      REQUIRE(target.launch(0, step(a.range(), c.range())));
      REQUIRE(target.launch(0, lie(b.range(), c.range())));
    });
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);  // with all that it does, it can be run again
    CHECK(out.replayed == 3);
  }
  SUBCASE("a hidden read of memory that changes") {
    const Run out = run(world, {a, b, c}, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      KernelCall call = step(a.range(), b.range());
      call.reads.clear();
      REQUIRE(target.launch(0, call));
      REQUIRE(target.launch(0, mix(c.range(), a.range())));
    });
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);
    CHECK(out.replayed == 0);
  }
  SUBCASE("pointers alone: what is only written comes out right, what is changed in place is copied") {
    REQUIRE(world.target().launch(0, fill(c.range(), 9)));
    REQUIRE(world.target().synchronize());
    const Run out = run(world, {a, b, c}, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      const auto both = [](KernelCall call) {
        call.reads = call.writes;
        return call;
      };
      REQUIRE(target.launch(0, both(fill(b.range(), 5))));
      REQUIRE(target.launch(0, both(fill(part(b, 1, 1), 6))));
      REQUIRE(target.launch(0, mix(a.range(), c.range())));
    });
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);
    CHECK(out.delta->sources[0].chunks.size() == 2);
    CHECK(out.replayed >= 2);
  }
  SUBCASE("a write of less than it says: the whole of its past is run") {
    const Run out = run(world, {a, b, c}, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      KernelCall narrow = fill({b.address, 8}, 77);
      narrow.writes = {b.range()};
      REQUIRE(target.launch(0, step(a.range(), b.range())));
      REQUIRE(target.launch(0, narrow));
    });
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);
    CHECK(out.replayed == 2);
  }
  SUBCASE("more launches than were recorded") {
    const Run out = run(world, {a, b, c}, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      for (int i = 0; i < 1001; ++i) REQUIRE(target.launch(0, step(a.range(), b.range())));
    });
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);
    CHECK(out.replayed == 0);
  }
  SUBCASE("a launch that names all the memory there could be") {
    const Run out = run(world, {a, b, c}, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      KernelCall call = step(a.range(), b.range());
      call.writes.push_back({a.address, uint64_t{1} << 62});
      REQUIRE(target.launch(0, call));
    });
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);
    CHECK(out.replayed == 0);
    CHECK(out.delta->sources[0].why_not == "the launches name more memory than can be looked into at a stop");
  }
  SUBCASE("no device memory to set anything aside") {
    DeviceOptions small = options();
    small.cow_budget = kDeviceChunk;
    const Run out = run(world, {a, b, c}, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      REQUIRE(target.launch(0, step(a.range(), b.range())));
    }, small);
    REQUIRE(out.delta);
    CHECK(out.restored == out.truth);
    CHECK(out.replayed == 0);
  }
}

TEST_CASE("replay: any program, with lies or without, is restored to the byte") {
  uint64_t replayed = 0, recorded = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    World world(1 + seed % 2, 1, seed, 64 << 20, 0);
    std::mt19937_64 rng(seed);
    std::vector<Allocation> mine;
    for (int i = 0; i < 5; ++i)
      mine.push_back(world.allocate(1 + rng() % 4, 0, static_cast<int>(i % world.gpus.size())));
    for (const Allocation& a : mine) REQUIRE(world.target().launch(0, fill(a.range(), rng())));
    REQUIRE(world.target().synchronize());
    const bool lies = seed % 4 == 0;
    const Run out = run(world, mine, DeltaMode::kRecompute, [&](EmulatedTarget& target) {
      for (int i = 0; i < 14; ++i) {
        auto some = [&] {
          const Allocation& a = mine[rng() % mine.size()];
          return part(a, rng() % (a.size / kDeviceChunk), 1);
        };
        const Range from = some(), to = some();
        const KernelCall call = lies && rng() % 6 == 0 ? lie(from, to)
                                : rng() % 5 == 0       ? mix(from, to)
                                : rng() % 4 == 0       ? fill(to, rng())
                                                       : step(from, to);
        REQUIRE(target.launch(0, call));
      }
    });
    REQUIRE_MESSAGE(out.delta, why(out.delta));
    REQUIRE_MESSAGE(out.whole, why(out.whole));
    CHECK(out.restored == out.truth);
    replayed += out.replayed, recorded += out.delta->sources[0].recorded;
  }
  MESSAGE(replayed << " of " << recorded << " launches ran again");
  CHECK(replayed > 0);
  CHECK(replayed * 2 < recorded);
}

TEST_CASE("replay: whatever call fails, the process has its memory") {
  for (const Fault fault : {Fault::kNoRoom, Fault::kTimeout, Fault::kDeviceLost, Fault::kTargetDies}) {
    for (uint64_t nth = 0;; ++nth) {
      World world(1, 1, 1, 64 << 20, 0);
      const Allocation a = world.allocate(2), b = world.allocate(2);
      REQUIRE(world.target().launch(0, fill(a.range(), 3)));
      REQUIRE(world.target().synchronize());
      MemorySink sink;
      DeviceCapture capture(world.sources(), world.device_list(), sink, options());
      REQUIRE(capture.iterate());
      REQUIRE(capture.begin_recording(100));
      REQUIRE(world.target().launch(0, step(a.range(), b.range())));
      auto stop = DeviceStop::begin({&world.target()}, 60 * kSecond);
      REQUIRE(stop);
      const Content before = peek_all(world, {{a, b}});
      world.faults->arm(nth, fault);
      auto delta = delta_with_replay(capture, DeltaMode::kRecompute, options());
      const bool fired = world.faults->fired();
      world.faults->disarm();
      const bool usable = world.target().alive() && !world.gpus[0]->lost();
      if (usable) CHECK(peek_all(world, {{a, b}}) == before);
      if (usable && !delta) CHECK(delta.error().code != Code::kTargetAltered);
      world.check_sound();
      if (!fired) {
        CHECK(delta);
        break;
      }
    }
  }
}

namespace {

/// A target of one allocation that `step` makes from another; a test does something when the log is asked for.
class HookedTarget final : public EmulatedTarget {
 public:
  HookedTarget(World& world) : EmulatedTarget(1, world.gpus, kernels()) {}
  std::function<void()> at_recorded, at_replay;
  int ended = 0;
  bool stuck = false, mute = false;
  Result<void> unlock_api() override {
    if (stuck) return fail(Code::kIo, "", "the API lock does not open (injected)");
    return EmulatedTarget::unlock_api();
  }
  Result<std::vector<Launch>> recorded() override {
    if (at_recorded) at_recorded();
    return EmulatedTarget::recorded();
  }
  Result<void> replay(const Launch& launch) override {
    if (at_replay) at_replay();
    return EmulatedTarget::replay(launch);
  }
  Result<void> drain(uint64_t timeout_us) override {
    if (mute) return fail(Code::kIo, "", "its agent's answer is damaged (injected)");
    return EmulatedTarget::drain(timeout_us);
  }
  Result<void> end_recording() override {
    ++ended;
    return EmulatedTarget::end_recording();
  }
};

}  // namespace

TEST_CASE("replay: what was set aside is not freed while it is being copied to, however long that takes") {
  World world(1, 0, 1, 64 << 20, 0);
  {
    HookedTarget target(world);
    target.at_recorded = [&] { world.gpus[0]->slow_down(30'000); };
    const Allocation a = *target.allocate(2 * kDeviceChunk), b = *target.allocate(2 * kDeviceChunk);
    MemorySink sink;
    DeviceOptions slow = options();
    slow.staging.timeout_us = 10'000;
    DeviceCapture capture({{&target, 3}}, world.device_list(), sink, slow);
    REQUIRE(capture.begin_recording(100));
    REQUIRE(target.launch(0, step(a.range(), b.range())));
    auto stop = DeviceStop::begin({&target}, 60 * kSecond);
    REQUIRE(stop);
    auto delta = delta_with_replay(capture, DeltaMode::kRecompute, slow);
    REQUIRE_FALSE(delta);
    CHECK(delta.error().code == Code::kBusy);
    CHECK(target.ended == 1);
  }
  world.check_sound();
}

TEST_CASE("replay: who breaks off during the attempt is told so, and the memory is as it was") {
  World world(1, 0, 1, 64 << 20, 0);
  HookedTarget target(world);
  Cancel cancel;
  target.at_replay = [&] { cancel.request(); };
  const Allocation a = *target.allocate(2 * kDeviceChunk), b = *target.allocate(2 * kDeviceChunk),
                   c = *target.allocate(kDeviceChunk);
  MemorySink sink;
  DeviceOptions opts = options();
  opts.staging.cancel = &cancel;
  DeviceCapture capture({{&target, 3}}, world.device_list(), sink, opts);
  REQUIRE(capture.begin_recording(100));
  REQUIRE(target.launch(0, step(a.range(), b.range())));
  KernelCall alone = fill(c.range(), 8);
  alone.replayable = false;
  REQUIRE(target.launch(0, alone));
  auto stop = DeviceStop::begin({&target}, 60 * kSecond);
  REQUIRE(stop);
  const Bytes before = target.peek(b.range());
  auto delta = delta_with_replay(capture, DeltaMode::kRecompute, opts);
  REQUIRE_FALSE(delta);
  CHECK(delta.error().code == Code::kInterrupted);
  CHECK(target.peek(b.range()) == before);
}

TEST_CASE("replay: nobody records any more after the delta, nor after a recording that did not begin") {
  World world(1, 0, 1, 64 << 20, 0);
  HookedTarget target(world);
  const Allocation a = *target.allocate(2 * kDeviceChunk), b = *target.allocate(2 * kDeviceChunk);
  MemorySink sink;
  DeviceCapture capture({{&target, 3}}, world.device_list(), sink, options());
  REQUIRE(capture.begin_recording(100));
  REQUIRE(target.launch(0, step(a.range(), b.range())));
  {
    auto stop = DeviceStop::begin({&target}, 60 * kSecond);
    REQUIRE(stop);
    REQUIRE(delta_with_replay(capture, DeltaMode::kRecompute, options()));
    CHECK(target.recorded().error().code == Code::kBug);  // nothing is recorded
  }
  target.stuck = true;
  CHECK_FALSE(capture.begin_recording(100));
  target.stuck = false;
  REQUIRE(target.lock_api(kSecond));
  CHECK(target.recorded().error().code == Code::kBug);
}

TEST_CASE("replay: memory that cannot be put back is an altered target, whatever stands in the way") {
  World world(1, 0, 1, 64 << 20, 0);
  HookedTarget target(world);
  target.at_replay = [&] { target.mute = true; };
  const Allocation a = *target.allocate(2 * kDeviceChunk), b = *target.allocate(2 * kDeviceChunk);
  MemorySink sink;
  DeviceCapture capture({{&target, 3}}, world.device_list(), sink, options());
  REQUIRE(capture.begin_recording(100));
  REQUIRE(target.launch(0, step(a.range(), b.range())));
  auto stop = DeviceStop::begin({&target}, 60 * kSecond);
  REQUIRE(stop);
  auto delta = delta_with_replay(capture, DeltaMode::kRecompute, options());
  REQUIRE_FALSE(delta);
  CHECK(delta.error().code == Code::kTargetAltered);
  CHECK_FALSE(delta.error().target_state.empty());
}
