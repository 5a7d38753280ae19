#include "tests/support/why.h"
#include "tests/unit/memory/device_helpers.h"

using namespace ckpt;
using namespace ckpt::capture;
using namespace ckpt::capture::test;

namespace {

/// Two processes on two devices, each with memory on both.
std::vector<std::vector<Allocation>> populate(World& world, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<std::vector<Allocation>> out(world.targets.size());
  for (size_t t = 0; t < world.targets.size(); ++t) {
    for (size_t i = 0; i < 4; ++i) {
      const Allocation a = world.allocate(1 + rng() % 12, t, static_cast<int>(i % world.gpus.size()));
      REQUIRE(world.target(t).launch(0, fill(a.range(), i == 3 ? 0 : rng())));
      out[t].push_back(a);
    }
    REQUIRE(world.target(t).synchronize());
  }
  return out;
}

std::vector<Target*> target_list(World& world) {
  std::vector<Target*> out;
  for (auto& target : world.targets) out.push_back(target.get());
  return out;
}

/// Where the two differ; empty: nowhere.
std::string difference(const Content& image, const Content& truth) {
  if (image.size() != truth.size())
    return "the image has " + std::to_string(image.size()) + " chunks, not " + std::to_string(truth.size());
  for (const auto& [where, bytes] : truth) {
    auto found = image.find(where);
    if (found == image.end()) return "a chunk is not there";
    if (found->second != bytes) return "a chunk differs";
  }
  return "";
}

}  // namespace

TEST_CASE("device delta: after rounds under writers at full speed the image is the memory of the stop") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    World world(2, 2, seed);
    const auto allocations = populate(world, seed);
    MemorySink sink;
    DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
    Writers writers(world, allocations, seed, true);  // and every eighth kernel lies
    for (uint64_t round = 0; round < 1 + seed % 3; ++round) {
      auto passed = capture.iterate();
      REQUIRE_MESSAGE(passed, why(passed));
    }
    auto stop = DeviceStop::begin(target_list(world), 60 * kSecond);
    REQUIRE_MESSAGE(stop, why(stop));
    auto pass = capture.delta();
    REQUIRE_MESSAGE(pass, why(pass));
    const Content truth = peek_all(world, allocations);
    REQUIRE(stop->end());
    writers.stop();
    CHECK(difference(sink.last_words, truth) == "");
    CHECK(pass->chunks == truth.size());
    CHECK(pass->copied + pass->zero + pass->kept == pass->chunks);
    world.check_sound();
  }
}

TEST_CASE("device delta: only what changed is copied, whoever says so; zeros are never copied") {
  World world;
  const Allocation a = world.allocate(16), zeros = world.allocate(8);
  REQUIRE(world.target().launch(0, fill(a.range(), 7)));
  REQUIRE(world.target().launch(0, fill(zeros.range(), 0)));
  REQUIRE(world.target().synchronize());
  MemorySink sink;
  DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
  auto first = capture.iterate();
  REQUIRE(first);
  CHECK(first->copied == 16);
  CHECK(first->zero == 8);
  auto quiet = capture.iterate();
  REQUIRE(quiet);
  CHECK(quiet->kept == 24);
  REQUIRE(world.target().launch(0, lie(part(a, 0, 1), part(a, 5, 2))));  // says 0, writes 5 and 6
  REQUIRE(world.target().launch(0, fill(part(a, 9, 3), 7)));             // writes what is there already
  REQUIRE(world.target().synchronize());
  auto dirty = capture.dirty_bytes();
  REQUIRE(dirty);
  CHECK(*dirty == 2 * kDeviceChunk);
  auto stop = DeviceStop::begin({&world.target()}, kSecond);
  REQUIRE(stop);
  auto pass = capture.delta();
  REQUIRE(pass);
  CHECK(pass->copied == 2);
  CHECK(pass->kept == 22);
  CHECK(difference(sink.last_words, peek_all(world, {{a, zeros}})) == "");
}

TEST_CASE("device delta: memory that comes and goes between rounds") {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    World world(1, 1, seed);
    std::vector<Allocation> mine = {world.allocate(4), world.allocate(6), world.allocate(2)};
    for (const Allocation& a : mine) REQUIRE(world.target().launch(0, fill(a.range(), seed + a.id)));
    MemorySink sink;
    DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
    REQUIRE(capture.iterate());
    REQUIRE(world.target().free(mine[1].id));
    mine[1] = world.allocate(3);
    REQUIRE(capture.iterate());
    mine.push_back(world.allocate(5));
    REQUIRE(world.target().launch(1, fill(mine[3].range(), 99)));
    auto stop = DeviceStop::begin({&world.target()}, 60 * kSecond);
    REQUIRE(stop);
    REQUIRE(capture.delta());
    CHECK(difference(sink.last_words, peek_all(world, {mine})) == "");
    world.check_sound();
  }
}

TEST_CASE("device delta: what the parent has is not copied again") {
  World world;
  const Allocation a = world.allocate(10);
  REQUIRE(world.target().launch(0, fill(a.range(), 3)));
  REQUIRE(world.target().synchronize());
  MemorySink first;
  std::vector<ChunkHash> hashes;
  {
    DeviceCapture capture(world.sources(), world.device_list(), first, small_options());
    auto stop = DeviceStop::begin({&world.target()}, kSecond);
    REQUIRE(capture.delta());
    hashes = capture.map().regions().front()->image;
  }
  REQUIRE(world.target().gate_open());
  REQUIRE(world.target().launch(0, fill(part(a, 4, 1), 4)));
  REQUIRE(world.target().synchronize());
  MemorySink second(first.last_words);
  DeviceCapture capture(world.sources(), world.device_list(), second, small_options());
  capture.map().expect(3, a.range(), hashes);
  auto stop = DeviceStop::begin({&world.target()}, kSecond);
  auto pass = capture.delta();
  REQUIRE(pass);
  CHECK(pass->copied == 1);
  CHECK(pass->kept == 9);
  CHECK(difference(second.last_words, peek_all(world, {{a}})) == "");
}

TEST_CASE("device snapshot: the image is t1 bit for bit while writers go on at full speed") {
  uint64_t from_saved = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(2, 2, seed);
    const auto allocations = populate(world, seed);
    MemorySink sink;
    DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
    Writers writers(world, allocations, seed);
    if (seed % 2 == 0) REQUIRE(capture.iterate());
    Content truth;
    auto shot = snapshot(capture, [&] { truth = peek_all(world, allocations); }, false);
    REQUIRE_MESSAGE(shot, why(shot));
    writers.stop();
    CHECK(shot->lost == 0);
    from_saved += shot->from_saved;
    CHECK(difference(sink.last_words, truth) == "");
    for (auto& target : world.targets) CHECK(target->cow_bytes() == 0);
    world.check_sound();
  }
  CHECK(from_saved > 0);  // else the writers were too slow to prove anything
}

TEST_CASE("device snapshot: hidden writes and a small budget make it an image of t2, or none") {
  int second = 0, refused = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    World world(1, 2, seed);
    const auto allocations = populate(world, seed);
    MemorySink sink;
    DeviceOptions options = small_options();
    const bool lies = seed % 2 == 0;
    if (!lies) options.cow_budget = 2 * kDeviceChunk;
    DeviceCapture capture(world.sources(), world.device_list(), sink, options);
    Writers writers(world, allocations, seed, lies);
    Content truth;
    const bool may_be_second = seed % 4 < 2;
    auto shot = snapshot(capture, [&] { truth = peek_all(world, allocations); }, may_be_second);
    for (auto& target : world.targets) {
      CHECK(target->gate_open());
      CHECK(target->cow_bytes() == 0);
    }
    writers.stop();
    if (shot) {
      CHECK(difference(sink.last_words, truth) == "");
      second += shot->lost != 0;
    } else {
      CHECK(shot.error().code == Code::kBusy);
      CHECK_FALSE(may_be_second);
      ++refused;
    }
    world.check_sound();
  }
  CHECK(second > 0);
  CHECK(refused > 0);
}

namespace {

/// An agent that tells what a test wants it to.
class LyingTarget final : public EmulatedTarget {
 public:
  using EmulatedTarget::EmulatedTarget;
  std::function<void(std::vector<Allocation>&)> lie;
  Result<std::vector<Allocation>> allocations() override {
    CKPT_TRY_ASSIGN(auto out, EmulatedTarget::allocations());
    lie(out);
    return out;
  }
};

}  // namespace

TEST_CASE("device capture: what a process tells of its memory is judged") {
  World world;
  LyingTarget target(1, world.gpus, kernels());
  REQUIRE(target.allocate(2 * kDeviceChunk));
  REQUIRE(target.allocate(2 * kDeviceChunk));
  auto refused = [&](Code code, std::function<void(std::vector<Allocation>&)> lie) {
    target.lie = std::move(lie);
    MemorySink sink;
    DeviceCapture capture({{&target, 3}}, world.device_list(), sink, small_options());
    auto round = capture.iterate();
    REQUIRE_FALSE(round);
    CHECK(round.error().code == code);
    CHECK(sink.copied == 0);
  };
  refused(Code::kUnsupported, [](auto& all) { all[0].address.value += 4096; });
  refused(Code::kUnsupported, [](auto& all) { all[0].size += 4096; });
  refused(Code::kUnsupported, [](auto& all) { all[0].size = 0; });
  refused(Code::kUnsupported, [](auto& all) { all[0].address.value = uint64_t{1} << 48; });
  refused(Code::kUnsupported, [](auto& all) { all[0].address.value = ~uint64_t{0xffff}; });
  refused(Code::kUnsupported, [](auto& all) { all[0].size = ~uint64_t{0xffff}; });
  refused(Code::kUnsupported, [](auto& all) { all[0].size *= 2; });  // its descriptor has less
  refused(Code::kNotFound, [](auto& all) { all[0].device = 7; });
  refused(Code::kCorrupt, [](auto& all) { all[1].address = all[0].address + kDeviceChunk; });
}

TEST_CASE(
    "device delta: an allocation in the place of one that was copied ahead is not taken for what the parent has "
    "there") {
  World world;
  LyingTarget target(1, world.gpus, kernels());
  target.lie = [](auto&) {};
  const Allocation old = *target.allocate(4 * kDeviceChunk);
  REQUIRE(target.launch(0, fill(old.range(), 3)));
  MemorySink first;
  std::vector<ChunkHash> hashes;
  {
    DeviceCapture capture({{&target, 3}}, world.device_list(), first, small_options());
    auto stop = DeviceStop::begin({&target}, 60 * kSecond);
    REQUIRE(capture.delta());
    hashes = capture.map().regions().front()->image;
  }
  MemorySink second(first.last_words);
  DeviceCapture capture({{&target, 3}}, world.device_list(), second, small_options());
  capture.map().expect(3, old.range(), hashes);
  REQUIRE(target.launch(0, fill(old.range(), 4)));
  REQUIRE(target.synchronize());
  REQUIRE(capture.iterate());
  REQUIRE(target.free(old.id));
  const Allocation fresh = *target.allocate(4 * kDeviceChunk);
  REQUIRE(target.launch(
      0, fill(fresh.range(), 3)));  // what the parent has, at the same address as a driver would give it again
  target.lie = [&](auto& all) { all[0].address = old.address; };
  auto stop = DeviceStop::begin({&target}, 60 * kSecond);
  auto pass = capture.delta();
  REQUIRE_MESSAGE(pass, why(pass));
  const Bytes now = target.peek(fresh.range());
  for (uint64_t i = 0; i < 4; ++i) {
    const auto at = now.begin() + static_cast<ptrdiff_t>(i * kDeviceChunk);
    CHECK(second.last_words[{3, part(old, i, 1).start.value}] == Bytes(at, at + static_cast<ptrdiff_t>(kDeviceChunk)));
  }
}

TEST_CASE("device delta: what the image has already can be said when the API locks are open again") {
  World world;
  const Allocation a = world.allocate(20);
  REQUIRE(world.target().launch(0, fill(a.range(), 7)));
  REQUIRE(world.target().synchronize());
  MemorySink sink;
  DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
  REQUIRE(capture.iterate());
  REQUIRE(world.target().launch(0, fill(part(a, 3, 2), 8)));
  auto stop = DeviceStop::begin({&world.target()}, kSecond);
  REQUIRE(stop);
  REQUIRE(capture.scan());
  auto pass = capture.copy_missing();
  REQUIRE(pass);
  const Content truth = peek_all(world, {{a}});
  REQUIRE(stop->end());
  REQUIRE(world.target().launch(0, fill(a.range(), 9)));
  CHECK(sink.last_words.size() == 2);
  REQUIRE(capture.say_kept());
  CHECK(difference(sink.last_words, truth) == "");
}

TEST_CASE("device staging: pinned memory is that of the ring, whatever is copied") {
  World world(1, 1, 1, 64 << 20, 0);
  const Allocation a = world.allocate(300);
  REQUIRE(world.target().launch(0, fill(a.range(), 5)));
  REQUIRE(world.target().synchronize());
  MemorySink sink;
  {
    DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
    REQUIRE(capture.iterate());
    REQUIRE(world.target().launch(0, fill(a.range(), 6)));
    REQUIRE(world.target().synchronize());
    REQUIRE(capture.iterate());
  }
  CHECK(sink.copied == 600);
  CHECK(world.gpus[0]->peak_pinned_bytes() == 3 * (4 * kDeviceChunk + 4096) + (1 << 20));
  CHECK(world.gpus[0]->pinned_bytes() == 0);
  CHECK(world.gpus[0]->used_bytes() == a.size);
}

namespace {

/// An image whose memory is full: what it throws must not be lost.
class ThrowingSink final : public MemorySink {
 public:
  Result<void> pre_copied(int, Address, ByteSpan, unsigned) override { throw std::bad_alloc(); }
};

/// A target whose device becomes slow once it has been asked for what was set aside.
class SlowedTarget final : public EmulatedTarget {
 public:
  SlowedTarget(World& world) : EmulatedTarget(1, world.gpus, kernels()), gpu_(world.gpus[0]) {}
  std::function<void()> meanwhile;
  Result<SavedTable> saved(uint64_t timeout_us) override {
    auto out = EmulatedTarget::saved(timeout_us);
    gpu_->slow_down(30'000);
    return out;
  }
  Result<void> unlock_api() override {
    CKPT_TRY(EmulatedTarget::unlock_api());
    if (meanwhile) meanwhile();
    return {};
  }

 private:
  std::shared_ptr<EmulatedGpu> gpu_;
};

}  // namespace

TEST_CASE(
    "device staging: an exception in whoever takes what was copied is an error, and nobody waits for its blocks") {
  World world;
  const Allocation a = world.allocate(60);
  REQUIRE(world.target().launch(0, fill(a.range(), 5)));
  REQUIRE(world.target().synchronize());
  ThrowingSink sink;
  DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
  auto round = capture.iterate();
  REQUIRE_FALSE(round);
  CHECK(round.error().code == Code::kNoRoom);
}

TEST_CASE("device snapshot: what was set aside is not freed while it is being copied from, however long that takes") {
  World world(1, 0);
  {
    SlowedTarget target(world);
    const Allocation a = *target.allocate(40 * kDeviceChunk);
    REQUIRE(target.launch(0, fill(a.range(), 5)));
    target.meanwhile = [&] {
      REQUIRE(target.launch(0, fill(a.range(), 6)));
      REQUIRE(target.synchronize());
    };
    MemorySink sink;
    DeviceOptions options = small_options();
    options.staging.timeout_us = 10'000;
    DeviceCapture capture({{&target, 3}}, world.device_list(), sink, options);
    auto shot = snapshot(capture, [] {}, false);
    REQUIRE_FALSE(shot);
    CHECK(shot.error().code == Code::kBusy);
    CHECK(target.cow_bytes() == 0);
  }
  world.check_sound();
  CHECK(world.gpus[0]->used_bytes() == 0);
}

TEST_CASE("device staging: a device without room gathers into host memory") {
  World world(1, 1, 1, 16 * kDeviceChunk);
  const Allocation a = world.allocate(16);
  REQUIRE(world.target().launch(0, fill(a.range(), 5)));
  REQUIRE(world.target().synchronize());
  MemorySink sink;
  DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
  auto stop = DeviceStop::begin({&world.target()}, kSecond);
  auto pass = capture.delta();
  REQUIRE_MESSAGE(pass, why(pass));
  CHECK(difference(sink.last_words, peek_all(world, {{a}})) == "");
}

TEST_CASE("device stop: all or none") {
  World world(1, 3);
  const Allocation a = world.allocate(1, 2);
  for (uint64_t nth = 0; nth < 6; ++nth) {
    world.faults->arm(nth, Fault::kTimeout);
    auto stop = DeviceStop::begin(target_list(world), kSecond);
    REQUIRE_FALSE(stop);
    CHECK(stop.error().code == Code::kBusy);
    for (auto& target : world.targets) CHECK(target->gate_open());
  }
  // A kernel that goes on for longer than the stop may take.
  std::atomic<bool> ends{false};
  EmulatedTarget slow(7, world.gpus, {{"spin", [&](KernelMemory&, const std::vector<uint64_t>&) {
                                         while (!ends) std::this_thread::yield();
                                       }}});
  REQUIRE(slow.launch(0, {"spin", {}, {}, {}, true}));
  auto stop = DeviceStop::begin({&world.target(), &slow}, 20'000);
  REQUIRE_FALSE(stop);
  CHECK(stop.error().code == Code::kBusy);
  CHECK(slow.gate_open());
  CHECK(world.target().gate_open());
  ends = true;
  (void)a;
}

namespace {

/// One capture of each kind in turn; the image counts only if all of it came about.
Result<void> capture_once(World& world, MemorySink& sink, int kind, const std::function<void()>& see) {
  DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
  if (kind == 2) {
    auto shot = snapshot(capture, see, true);
    return shot ? Result<void>() : Result<void>(std::move(shot).error());
  }
  if (kind == 1) {
    CKPT_TRY_ASSIGN(DevicePass pass, capture.iterate());
    CHECK(pass.chunks != 0);
  }
  CKPT_TRY_ASSIGN(DeviceStop stop, DeviceStop::begin(target_list(world), 60 * kSecond));
  see();
  CKPT_TRY_ASSIGN(DevicePass pass, capture.delta());
  CHECK(pass.chunks != 0);
  auto ended = stop.end();
  return ended ? Result<void>() : Result<void>(std::move(ended).error());
}

}  // namespace

TEST_CASE(
    "device capture: whatever call fails, APIs are unlocked, nothing is left behind, the image is whole or absent") {
  const std::pair<Fault, Code> faults[] = {{Fault::kNoRoom, Code::kNoRoom},
                                           {Fault::kTimeout, Code::kBusy},
                                           {Fault::kDeviceLost, Code::kIo},
                                           {Fault::kTargetDies, Code::kNotFound}};
  for (int kind = 0; kind < 3; ++kind) {
    for (const auto& [fault, code] : faults) {
      int failed = 0;
      for (uint64_t nth = 0;; ++nth) {
        const std::string where =
            std::to_string(kind) + " " + std::to_string(static_cast<int>(fault)) + " " + std::to_string(nth);
        CAPTURE(where);
        World world(1, 2, 1, 64 << 20, 0);
        std::vector<std::vector<Allocation>> allocations = {{world.allocate(5)}, {world.allocate(3, 1)}};
        for (size_t t = 0; t < 2; ++t) {
          REQUIRE(world.target(t).launch(0, fill(allocations[t][0].range(), 40 + t)));
          REQUIRE(world.target(t).synchronize());
        }
        const Content before = peek_all(world, allocations);
        const uint64_t used = world.gpus[0]->used_bytes();
        MemorySink sink;
        Content truth;
        world.faults->arm(nth, fault);
        Result<void> result = capture_once(world, sink, kind, [&]() -> Result<void> {
          truth = peek_all(world, allocations);
          return {};
        });
        const bool fired = world.faults->fired();
        world.faults->disarm();
        if (result) CHECK(difference(sink.last_words, truth) == "");
        else CHECK(result.error().code == code);
        failed += !result;
        for (auto& target : world.targets) {
          if (target->alive()) CHECK(target->gate_open());
          if (target->alive()) CHECK(target->cow_bytes() == 0);
        }
        CHECK(difference(peek_all(world, allocations), before) == "");
        CHECK(world.gpus[0]->pinned_bytes() == 0);
        if (world.target(0).alive() && world.target(1).alive()) CHECK(world.gpus[0]->used_bytes() == used);
        world.check_sound();
        if (!fired) break;
      }
      CHECK(failed >= 8);
    }
  }
}

TEST_CASE("device capture: a full disk at any write leaves the target as it was and no image") {
  for (int kind = 0; kind < 3; ++kind) {
    for (uint64_t nth = 0;; ++nth) {
      World world(1, 1, 1, 64 << 20, 0);
      const Allocation a = world.allocate(14);
      REQUIRE(world.target().launch(0, fill(a.range(), 1)));
      REQUIRE(world.target().synchronize());
      MemorySink sink;
      sink.fail_at = nth;
      auto result = capture_once(world, sink, kind, [] { return Result<void>(); });
      CHECK(world.target().gate_open());
      CHECK(world.target().cow_bytes() == 0);
      CHECK(world.gpus[0]->used_bytes() == a.size);
      world.check_sound();
      if (result) {
        CHECK(nth >= 14);
        break;
      }
      CHECK(result.error().code == Code::kNoRoom);
    }
  }
}
