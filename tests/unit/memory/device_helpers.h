// A machine of emulated devices, processes that write them at full speed, and an image in memory.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "tests/support/emulated/target.h"
#include "lib/memory/device/capture.h"

namespace ckpt::capture::test {

using namespace ckpt::device;
using Bytes = std::vector<std::byte>;
constexpr uint64_t kSecond = 1'000'000;

/// "mix a b n": b[i] = b[i] * 3 + a[i] + i. "fill a n v". "lie a b n": says that it writes a, writes b. "chase t n v":
/// fills what the first word of t points to. "step a b n": b[i] = a[i] * 5 + 1, which depends on a alone.
inline std::map<std::string, Kernel> kernels() {
  using Arguments = const std::vector<uint64_t>&;
  return {
      {"mix",
       [](KernelMemory& m, Arguments a) {
         uint64_t *from = m.words({a[0]}, a[2]), *to = m.words({a[1]}, a[2]);
         for (uint64_t i = 0; i < a[2]; ++i) to[i] = to[i] * 3 + from[i] + i;
       }},
      {"step",
       [](KernelMemory& m, Arguments a) {
         uint64_t *from = m.words({a[0]}, a[2]), *to = m.words({a[1]}, a[2]);
         for (uint64_t i = 0; i < a[2]; ++i) to[i] = from[i] * 5 + 1;
       }},
      {"fill", [](KernelMemory& m, Arguments a) { std::fill_n(m.words({a[0]}, a[1]), a[1], a[2]); }},
      {"lie",
       [](KernelMemory& m, Arguments a) {
         uint64_t* to = m.words({a[1]}, a[2]);
         for (uint64_t i = 0; i < a[2]; ++i) to[i] += i + 1;
       }},
      {"chase",
       [](KernelMemory& m, Arguments a) {
         if (uint64_t* to = m.words({*m.words({a[0]}, 1)}, a[1])) std::fill_n(to, a[1], a[2]);
       }},
  };
}

inline Range part(const Allocation& a, uint64_t first, uint64_t chunks) {
  return {a.address + first * kDeviceChunk, chunks * kDeviceChunk};
}
inline KernelCall fill(Range to, uint64_t value) {
  return {"fill", {to.start.value, to.size / 8, value}, {}, {to}, true};
}
inline KernelCall mix(Range from, Range to) {
  return {"mix", {from.start.value, to.start.value, to.size / 8}, {from, to}, {to}, true};
}
inline KernelCall step(Range from, Range to) {
  return {"step", {from.start.value, to.start.value, to.size / 8}, {from}, {to}, true};
}
inline KernelCall lie(Range says, Range writes) {
  return {"lie", {says.start.value, writes.start.value, writes.size / 8}, {}, {says}, true};
}

struct World {
  std::shared_ptr<Faults> faults = std::make_shared<Faults>();
  std::vector<std::shared_ptr<EmulatedGpu>> gpus;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<EmulatedTarget>> targets;

  explicit World(int device_count = 1, int target_count = 1, uint64_t seed = 1, uint64_t capacity = 64 << 20,
                 uint32_t delay_us = 20) {
    for (int i = 0; i < device_count; ++i) {
      EmulatedGpu::Options options;
      options.number = i, options.seed = seed, options.capacity = capacity, options.max_delay_us = delay_us,
      options.faults = faults;
      gpus.push_back(EmulatedGpu::create(options));
      devices.push_back(make_emulated_device(gpus.back()));
    }
    for (int i = 0; i < target_count; ++i)
      targets.push_back(std::make_unique<EmulatedTarget>(100 + i, gpus, kernels()));
  }
  EmulatedTarget& target(size_t i = 0) { return *targets[i]; }
  std::vector<Device*> device_list() const {
    std::vector<Device*> out;
    for (const auto& device : devices) out.push_back(device.get());
    return out;
  }
  std::vector<DeviceSource> sources() const {
    std::vector<DeviceSource> out;
    for (size_t i = 0; i < targets.size(); ++i) out.push_back({targets[i].get(), static_cast<int>(i) + 3});
    return out;
  }
  Allocation allocate(uint64_t chunks, size_t target = 0, int device = 0) {
    auto out = targets[target]->allocate(chunks * kDeviceChunk, device);
    REQUIRE(out);
    return *out;
  }
  /// Nothing was done that real devices leave undefined.
  void check_sound() const {
    for (const auto& gpu : gpus) CHECK(gpu->violations().empty());
  }
};

inline DeviceOptions small_options() {
  DeviceOptions out;
  out.staging.block_bytes = 4 * kDeviceChunk, out.staging.blocks = 3, out.staging.workers = 2;
  out.staging.timeout_us = out.stop_timeout_us = 60 * kSecond;
  out.cow_budget = 32 << 20;
  return out;
}

/// What is where, by space and address of a chunk.
using Content = std::map<std::pair<int, uint64_t>, Bytes>;

inline void peek_into(Content& out, const EmulatedTarget& target, int space, const Allocation& a) {
  const Bytes bytes = target.peek(a.range());
  for (uint64_t at = 0; at < bytes.size(); at += kDeviceChunk) {
    out[{space, a.address.value + at}] =
        Bytes(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.begin() + static_cast<ptrdiff_t>(at + kDeviceChunk));
  }
}
inline Content peek_all(const World& world, const std::vector<std::vector<Allocation>>& allocations) {
  Content out;
  for (size_t i = 0; i < world.targets.size(); ++i) {
    for (const Allocation& a : allocations[i]) peek_into(out, *world.targets[i], static_cast<int>(i) + 3, a);
  }
  return out;
}

/// An image by copy-on-write, of t1, or of a second stop where t1 is lost and `may_be_second`. `see` is called at each
/// stop.
inline Result<DeviceCapture::Snapshot> snapshot(DeviceCapture& capture, const std::function<void()>& see,
                                                bool may_be_second) {
  std::vector<device::Target*> targets;
  for (const DeviceSource& source : capture.map().sources()) targets.push_back(source.target);
  {
    CKPT_TRY_ASSIGN(DeviceStop stop, DeviceStop::begin(targets, 60 * kSecond));
    CKPT_TRY(capture.scan());
    see();
    CKPT_TRY(capture.begin_cow());
    CKPT_TRY(stop.end());
  }
  CKPT_TRY_ASSIGN(const DeviceCapture::Snapshot shot, capture.end_cow());
  if (shot.lost == 0) {
    CKPT_TRY(capture.say_kept());
    return shot;
  }
  if (!may_be_second) return fail(Code::kBusy, "", "lost");
  CKPT_TRY_ASSIGN(DeviceStop stop, DeviceStop::begin(targets, 60 * kSecond));
  see();
  CKPT_TRY(capture.delta());
  CKPT_TRY(stop.end());
  return shot;
}

/// An image in memory, with the rules of the real one.
class MemorySink : public DeviceSink, public DeviceContent {
 public:
  explicit MemorySink(Content parent = {}) : ahead_(std::move(parent)) {}
  Content last_words;
  uint64_t copied = 0;
  uint64_t fail_at = ~uint64_t{0};  ///< this call finds the disk full

  Result<void> pre_copied(int space, Address chunk, ByteSpan bytes, unsigned iteration) override {
    std::lock_guard lock(mutex_);
    CHECK(last_words.empty());
    CHECK(iterations_[{space, chunk.value}] != iteration + 1);
    iterations_[{space, chunk.value}] = iteration + 1;
    ++copied;
    return put(ahead_, space, chunk, bytes);
  }
  Result<void> pre_copied_zero(int space, Address chunk, unsigned iteration) override {
    CKPT_TRY(pre_copied(space, chunk, Bytes(kDeviceChunk), iteration));
    --copied;
    return {};
  }
  Result<void> last(int space, Address chunk, ByteSpan bytes) override {
    std::lock_guard lock(mutex_);
    CHECK(last_words.count({space, chunk.value}) == 0);
    ++copied;
    return put(last_words, space, chunk, bytes);
  }
  Result<void> zero(int space, Address chunk) override {
    CKPT_TRY(last(space, chunk, Bytes(kDeviceChunk)));
    --copied;
    return {};
  }
  Result<void> keep(int space, Address chunk) override {
    std::lock_guard lock(mutex_);
    CHECK(last_words.count({space, chunk.value}) == 0);
    REQUIRE(ahead_.count({space, chunk.value}) == 1);
    return put(last_words, space, chunk, ahead_[{space, chunk.value}]);
  }
  Result<void> read(int space, Address chunk, MutableByteSpan out) override {
    std::lock_guard lock(mutex_);
    if (calls_++ == fail_at) return fail(Code::kIo, "", "the disk is gone (injected)");
    ++reads;
    read_order.push_back(chunk);
    const Bytes& bytes = last_words.at({space, chunk.value});
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return {};
  }
  uint64_t reads = 0;
  std::vector<Address> read_order;

 private:
  Result<void> put(Content& where, int space, Address chunk, ByteSpan bytes) {
    if (calls_++ == fail_at) return fail(Code::kNoRoom, "", "the disk is full (injected)");
    where[{space, chunk.value}] = Bytes(bytes.begin(), bytes.end());
    return {};
  }
  std::mutex mutex_;
  Content ahead_;
  std::map<std::pair<int, uint64_t>, unsigned> iterations_;
  uint64_t calls_ = 0;
};

/// Programs that launch as fast as they can until they are told to stop, or die.
class Writers {
 public:
  Writers(World& world, std::vector<std::vector<Allocation>> allocations, uint64_t seed, bool lies = false) {
    for (size_t i = 0; i < world.targets.size(); ++i) {
      threads_.emplace_back([this, &target = *world.targets[i], mine = allocations[i], seed = seed + i, lies] {
        run(target, mine, seed, lies);
      });
    }
  }
  ~Writers() { stop(); }
  void stop() {
    stop_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void run(EmulatedTarget& target, const std::vector<Allocation>& mine, uint64_t seed, bool lies) {
    std::mt19937_64 rng(seed);
    auto some = [&] {
      const Allocation& a = mine[rng() % mine.size()];
      const uint64_t chunks = a.size / kDeviceChunk, first = rng() % chunks;
      return part(a, first, 1 + rng() % std::min<uint64_t>(chunks - first, 3));
    };
    for (uint64_t i = 0; !stop_; ++i) {
      Range to = some(), from = some();
      from.size = to.size = std::min(from.size, to.size);
      const KernelCall call = lies && rng() % 8 == 0 ? lie(from, to) : rng() % 4 == 0 ? fill(to, rng()) : mix(from, to);
      if (!target.launch(static_cast<int>(rng() % 2), call)) return;
      if (i % 64 == 63 && !target.synchronize()) return;
    }
  }
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace ckpt::capture::test
