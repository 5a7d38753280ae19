#include "lib/memory/device/fill.h"

#include "lib/memory/device/offload.h"
#include "tests/unit/memory/device_helpers.h"

using namespace ckpt;
using namespace ckpt::capture;
using namespace ckpt::capture::test;

namespace {

/// An image of the first target of a world, and what it had.
struct Saved {
  MemorySink content;
  store::DeviceMemory memory;
  std::vector<std::vector<ChunkHash>> hashes;
  std::vector<Allocation> allocations;
  Content truth;
};

void save(World& world, const std::vector<Allocation>& allocations, Saved& out) {
  DeviceCapture capture(world.sources(), world.device_list(), out.content, small_options());
  auto stop = DeviceStop::begin({&world.target()}, 60 * kSecond);
  REQUIRE(stop);
  REQUIRE(capture.delta());
  out.truth = peek_all(world, {allocations});
  out.allocations = allocations;
  out.memory.space = 3;
  auto regions = capture.map().regions();
  std::sort(regions.begin(), regions.end(),
            [](auto* a, auto* b) { return a->allocation.address < b->allocation.address; });
  for (const DeviceRegion* region : regions) {
    out.memory.allocations.push_back(
        {region->allocation.id, region->allocation.address.value, region->allocation.size, region->uuid, 0, {}});
    out.hashes.push_back(region->image);
  }
}

/// The process made again, on devices of its own.
struct Restored {
  World world;
  EmulatedTarget& target;
  explicit Restored(const Saved& saved, int devices = 1, uint64_t capacity = 64 << 20)
      : world(devices, 0, 9, capacity), target(make(saved)) {
    REQUIRE(target.lock_api(kSecond));
  }
  EmulatedTarget& make(const Saved& saved) {
    world.targets.push_back(std::make_unique<EmulatedTarget>(100, world.gpus, kernels(), saved.allocations));
    return *world.targets.back();
  }
  Content now(const Saved& saved) const { return peek_all(world, {saved.allocations}); }
};

DeviceFill filler(Restored& restored, Saved& saved) {
  return DeviceFill(restored.target, saved.memory, saved.hashes, restored.world.device_list(), saved.content,
                    small_options().staging);
}

std::vector<Allocation> four(World& world) {
  std::vector<Allocation> out;
  for (uint64_t i = 0; i < 4; ++i) {
    out.push_back(world.allocate(3 + i, 0, static_cast<int>(i % world.gpus.size())));
    for (uint64_t k = 0; k < 3 + i; ++k) REQUIRE(world.target().launch(0, fill(part(out[i], k, 1), 100 * i + k)));
  }
  REQUIRE(world.target().synchronize());
  return out;
}

}  // namespace

TEST_CASE("device fill: eagerly, everything is at its old address") {
  for (int devices : {1, 2}) {
    World world(devices);
    Saved saved;
    save(world, four(world), saved);
    Restored restored(saved, devices);
    {
      DeviceFill fill = filler(restored, saved);
      REQUIRE(fill.attach());
      auto report = fill.eager();
      REQUIRE(report);
      CHECK(report->sent == 18);
      CHECK(restored.now(saved) == saved.truth);
    }
    restored.world.check_sound();
  }
}

TEST_CASE("device fill: a chunk that is on the device already is not sent again") {
  World world;
  const Allocation a = world.allocate(8), b = world.allocate(8), zeros = world.allocate(8);
  for (uint64_t i = 0; i < 8; ++i) {
    REQUIRE(world.target().launch(0, fill(part(a, i, 1), i % 4 + 1)));
    REQUIRE(world.target().launch(0, fill(part(b, i, 1), i % 5 + 1)));
  }
  REQUIRE(world.target().launch(0, fill(zeros.range(), 0)));
  REQUIRE(world.target().synchronize());
  Saved saved;
  save(world, {a, b, zeros}, saved);
  Restored restored(saved);
  DeviceFill fill = filler(restored, saved);
  REQUIRE(fill.attach());
  auto report = fill.eager();
  REQUIRE(report);
  CHECK(report->sent == 6);  // four of a, one more of b, one of zeros
  CHECK(report->within_device == 18);
  CHECK(saved.content.reads == 6);
  CHECK(restored.now(saved) == saved.truth);
}

TEST_CASE("device fill: lazily, a launch has what it needs, and the end is the same as if all had been there") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    World world(1, 1, seed);
    const std::vector<Allocation> mine = four(world);
    Saved saved;
    save(world, mine, saved);
    Restored restored(saved);
    auto program = [&](EmulatedTarget& target) {
      std::mt19937_64 rng(seed);
      for (int i = 0; i < 30; ++i) {
        const Allocation &from = mine[rng() % 4], &to = mine[rng() % 4];
        if (!target.launch(0, mix(part(from, rng() % 2, 1), part(to, rng() % 3, 1)))) return;
      }
      (void)target.synchronize();
    };
    DeviceFill fill = filler(restored, saved);
    REQUIRE(fill.attach());
    std::thread running([&] { program(restored.target); });
    auto report = fill.lazy();
    running.join();
    REQUIRE(report);
    program(world.target());
    CHECK(restored.now(saved) == peek_all(world, {mine}));
    restored.world.check_sound();
  }
}

TEST_CASE("device fill: what a launch waits for comes first") {
  World world;
  std::vector<Allocation> mine;
  for (int i = 0; i < 40; ++i) mine.push_back(world.allocate(2));
  for (const Allocation& a : mine) REQUIRE(world.target().launch(0, fill(a.range(), a.id)));
  REQUIRE(world.target().synchronize());
  Saved saved;
  save(world, mine, saved);
  Restored restored(saved);
  DeviceFill fill = filler(restored, saved);
  REQUIRE(fill.attach());
  REQUIRE(restored.target.begin_fill({mine[39].id}));
  std::thread running([&] { (void)restored.target.launch(0, test::fill(mine[39].range(), 1)); });
  auto demand = restored.target.next_demand(60 * kSecond);
  CHECK((demand && demand->has_value()));
  auto report = fill.lazy();
  running.join();
  REQUIRE(report);
  CHECK(report->demanded == std::vector<uint64_t>{mine[39].id});
  CHECK(mine[39].range().contains(saved.content.read_order.front()));
}

TEST_CASE("device fill: kernels follow addresses that they find in memory") {
  World world;
  const Allocation table = world.allocate(1), middle = world.allocate(1), far = world.allocate(4);
  REQUIRE(world.target().launch(0, fill(far.range(), 5)));
  const uint64_t to_middle = middle.address.value, to_far = far.address.value + kDeviceChunk;
  REQUIRE(world.target().write(0, table.address, std::as_bytes(std::span(&to_middle, 1))));
  REQUIRE(world.target().write(0, middle.address, std::as_bytes(std::span(&to_far, 1))));
  REQUIRE(world.target().synchronize());
  const std::vector<Allocation> mine = {table, middle, far};
  Saved saved;
  save(world, mine, saved);
  for (const Allocation& start : {table, middle}) {
    Restored restored(saved);
    DeviceFill fill = filler(restored, saved);
    REQUIRE(fill.attach());
    // Writes through the second word on: one chunk behind the address that it finds.
    const KernelCall chase{"chase", {start.address.value, kDeviceChunk / 8, 77}, {start.range()}, {}, true};
    std::thread running([&] {
      (void)restored.target.launch(0, chase);
      (void)restored.target.synchronize();
    });
    REQUIRE(fill.lazy());
    running.join();
    // The same on memory that is all there.
    Restored eager(saved);
    DeviceFill fill_eager = filler(eager, saved);
    REQUIRE(fill_eager.attach());
    REQUIRE(fill_eager.eager());
    REQUIRE(eager.target.unlock_api());
    REQUIRE(eager.target.launch(0, chase));
    REQUIRE(eager.target.synchronize());
    CHECK(restored.now(saved) == eager.now(saved));
  }
}

TEST_CASE("device fill: too little memory is found before anything is touched; other allocations are refused") {
  World world;
  Saved saved;
  save(world, four(world), saved);
  {
    Restored restored(saved, 1, 17 * kDeviceChunk);
    auto attached = filler(restored, saved).attach();
    REQUIRE_FALSE(attached);
    CHECK(attached.error().code == Code::kNoRoom);
    CHECK(restored.world.gpus[0]->peak_bytes() == 0);
  }
  saved.allocations.pop_back();
  Restored restored(saved);
  auto attached = filler(restored, saved).attach();
  REQUIRE_FALSE(attached);
  CHECK(attached.error().code == Code::kMismatch);
}

TEST_CASE("device fill: bytes that are not those of the hashes are refused") {
  World world;
  Saved saved;
  save(world, four(world), saved);
  saved.content.last_words.begin()->second[100] ^= std::byte{1};
  Restored restored(saved);
  DeviceFill fill = filler(restored, saved);
  REQUIRE(fill.attach());
  auto report = fill.eager();
  REQUIRE_FALSE(report);
  CHECK(report.error().code == Code::kCorrupt);
}

TEST_CASE("device fill: whatever fails, memory is right or an error says that it is not") {
  World world;
  const std::vector<Allocation> mine = four(world);
  Saved saved;
  save(world, mine, saved);
  for (const Fault fault : {Fault::kNoRoom, Fault::kTimeout, Fault::kDeviceLost, Fault::kTargetDies}) {
    for (const bool lazily : {false, true}) {
      for (uint64_t nth = 0;; ++nth) {
        Restored restored(saved);
        restored.world.faults->arm(nth, fault);
        Result<void> attached;
        Result<FillReport> report = FillReport();
        {
          DeviceFill fill = filler(restored, saved);
          attached = fill.attach();
          if (attached) report = lazily ? fill.lazy() : fill.eager();
        }
        const bool fired = restored.world.faults->fired();
        restored.world.faults->disarm();
        if (!attached && !restored.world.gpus[0]->lost() && restored.target.alive()) {
          CHECK(restored.world.gpus[0]->used_bytes() == 0);
          auto left = restored.target.allocations();
          for (const Allocation& a : *left) CHECK(a.released);
        }
        if (attached && report) CHECK(restored.now(saved) == saved.truth);
        if (attached && lazily && !report && restored.target.alive()) {
          CHECK(report.error().target_state.find("waits for device memory that will not come") != std::string::npos);
        }
        CHECK(restored.world.gpus[0]->pinned_bytes() == 0);
        restored.world.check_sound();
        if (!fired) {
          CHECK(attached);
          CHECK(report);
          break;
        }
      }
    }
  }
}

TEST_CASE("device offload: the memory waits, the process has none of it, and gets it back at the same addresses") {
  World world(2, 2);
  std::vector<std::vector<Allocation>> all(2);
  for (size_t t = 0; t < 2; ++t) {
    for (int i = 0; i < 3; ++i) all[t].push_back(world.allocate(4, t, i % 2));
    for (const Allocation& a : all[t]) REQUIRE(world.target(t).launch(0, fill(a.range(), a.id + t)));
  }
  auto stop = DeviceStop::begin({&world.target(0), &world.target(1)}, 60 * kSecond);
  REQUIRE(stop);
  const Content before = peek_all(world, all);
  const uint64_t used = world.gpus[0]->used_bytes() + world.gpus[1]->used_bytes();
  {
    auto offload = DeviceOffload::offload({&world.target(0), &world.target(1)}, world.device_list());
    REQUIRE(offload);
    CHECK(offload->bytes() == used);
    CHECK(world.target(0).peek(all[0][0].range()).empty());
    uint64_t told = 0;
    REQUIRE(offload->for_each([&](int pid, uint64_t, int fd) -> Result<void> {
      CHECK((pid == 100 || pid == 101));
      CHECK(fd >= 0);
      ++told;
      return {};
    }));
    CHECK(told == 6);
    CHECK(offload->for_each([&](int, uint64_t, int) { return Result<void>(Error(Code::kIo, "", "")); }).error().code ==
          Code::kIo);
    CHECK(world.gpus[0]->used_bytes() + world.gpus[1]->used_bytes() == used);
    REQUIRE(offload->give_back());
    CHECK(offload->bytes() == 0);
  }
  REQUIRE(stop->end());
  CHECK(peek_all(world, all) == before);
  REQUIRE(world.target(1).launch(0, fill(all[1][0].range(), 1)));
  REQUIRE(world.target(1).synchronize());
  world.check_sound();
}

TEST_CASE("device offload: whatever fails, the process has its memory, or ckpt has it and says so") {
  for (const Fault fault : {Fault::kNoRoom, Fault::kTimeout, Fault::kTargetDies}) {
    for (uint64_t nth = 0;; ++nth) {
      World world;
      const std::vector<Allocation> mine = four(world);
      REQUIRE(world.target().lock_api(kSecond));
      REQUIRE(world.target().drain(60 * kSecond));
      const Content before = peek_all(world, {mine});
      world.faults->arm(nth, fault);
      {
        auto offload = DeviceOffload::offload({&world.target()}, world.device_list());
        Result<void> back = offload ? offload->give_back() : Result<void>();
        if (!back && world.target().alive()) {
          CHECK(back.error().code == Code::kTargetAltered);
          CHECK(back.error().target_state.find("ckpt still has them") != std::string::npos);
        }
      }  // the destructor tries once more
      const bool fired = world.faults->fired();
      world.faults->disarm();
      if (world.target().alive()) CHECK(peek_all(world, {mine}) == before);
      world.check_sound();
      if (!fired) break;
    }
  }
}
