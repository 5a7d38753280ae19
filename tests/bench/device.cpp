// The device pipeline without a device: the hash of chunks on the CPU beside a plain copy, and the pipeline over an
// emulated device beside the same copy; each with its floor in the same run, in turn, medians and their ratio.
//
//   bench_device [MIB] [REPEATS]
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "lib/base/clock.h"
#include "tests/support/emulated/target.h"
#include "lib/memory/device/capture.h"
#include "lib/memory/device/fill.h"

using namespace ckpt;
using namespace ckpt::capture;
using namespace ckpt::device;

namespace {

constexpr uint64_t kWait = 600'000'000;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Way {
  const char* name;
  std::function<void()> run;
  std::function<void()> before = {};  ///< not measured
};

/// GB/s of each, run in turn; the ratios are to the first.
void compare(const char* title, size_t bytes, int repeats, const std::vector<Way>& ways) {
  std::vector<std::vector<double>> rates(ways.size());
  for (int i = 0; i < repeats; ++i) {
    for (size_t k = 0; k < ways.size(); ++k) {
      if (ways[k].before) ways[k].before();
      Stopwatch watch;
      ways[k].run();
      rates[k].push_back(static_cast<double>(bytes) / 1e3 /
                         static_cast<double>(std::max<uint64_t>(watch.elapsed_us(), 1)));
    }
  }
  fmt::print("{}\n", title);
  for (size_t k = 0; k < ways.size(); ++k) {
    fmt::print("  {:<44} {:7.2f} GB/s  {:5.2f}\n", ways[k].name, median(rates[k]), median(rates[k]) / median(rates[0]));
  }
}

template <class T>
T need(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "{}\n", result.error().text());
  std::exit(1);
}
void need(Result<void> result) {
  if (result) return;
  fmt::print(stderr, "{}\n", result.error().text());
  std::exit(1);
}

/// Takes chunks to one place each, as a writer with memory to spare would.
class Nowhere final : public DeviceSink, public DeviceContent {
 public:
  Result<void> pre_copied(int, Address, ByteSpan, unsigned) override { return {}; }
  Result<void> pre_copied_zero(int, Address, unsigned) override { return {}; }
  Result<void> last(int, Address, ByteSpan) override { return {}; }
  Result<void> zero(int, Address) override { return {}; }
  Result<void> keep(int, Address) override { return {}; }
  Result<void> read(int, Address chunk, MutableByteSpan out) override {
    std::memcpy(out.data(), bytes + (chunk - base), out.size());
    return {};
  }
  const std::byte* bytes = nullptr;
  Address base;
};

std::shared_ptr<EmulatedGpu> make_gpu(size_t bytes) {
  EmulatedGpu::Options options;
  options.capacity = 3 * bytes + (256 << 20);
  return EmulatedGpu::create(options);
}

void hashing(std::vector<std::byte>& from, std::vector<std::byte>& to, int repeats) {
  const size_t bytes = from.size();
  auto each = [&](const std::function<void(size_t)>& work) {
    for (size_t at = 0; at < bytes; at += kDeviceChunk) work(at);
  };
  compare("chunks of 64 KiB, one thread, memory", bytes, repeats,
          {{"memcpy", [&] { each([&](size_t at) { std::memcpy(&to[at], &from[at], kDeviceChunk); }); }},
           {"hash", [&] { each([&](size_t at) { (void)hash_chunk(&from[at], kDeviceChunk); }); }},
           {"copy and hash in one pass",
            [&] { each([&](size_t at) { (void)copy_and_hash_chunk(&to[at], &from[at], kDeviceChunk); }); }},
           {"memcpy, then hash", [&] {
              each([&](size_t at) {
                std::memcpy(&to[at], &from[at], kDeviceChunk), (void)hash_chunk(&to[at], kDeviceChunk);
              });
            }}});
  compare("the same chunk again and again", bytes, repeats,
          {{"memcpy", [&] { each([&](size_t) { std::memcpy(to.data(), from.data(), kDeviceChunk); }); }},
           {"hash", [&] { each([&](size_t) { (void)hash_chunk(from.data(), kDeviceChunk); }); }}});
}

void pipeline(std::vector<std::byte>& bytes, std::vector<std::byte>& to, int repeats) {
  auto gpu = make_gpu(bytes.size());
  auto device = make_emulated_device(gpu);
  Address target_memory;
  EmulatedTarget target(1, {gpu}, {{"touch", [](KernelMemory& m, const std::vector<uint64_t>& a) {
                                         for (uint64_t at = 0; at < a[1]; at += a[2]) ++*m.words({a[0] + at}, 1);
                                       }}});
  auto touch = [&](uint64_t step) {
    need(target.launch(0, {"touch", {target_memory.value, bytes.size(), step}, {}, {}, true}));
    need(target.synchronize());
  };
  const Allocation memory = need(target.allocate(bytes.size()));
  target_memory = memory.address;
  auto stream = need(device->create_stream());
  auto import = need(device->import(need(target.export_allocation(memory.id)).get(), memory.size));
  auto host = need(device->allocate_pinned(4 << 20));
  need(stream->copy_to_device(import->range(), bytes));
  need(stream->synchronize(kWait));
  Nowhere sink;
  DeviceOptions options;
  DeviceCapture rounds({{&target, 1}}, {device.get()}, sink, options);
  need(rounds.iterate());
  compare("the pipeline over an emulated device", bytes.size(), repeats,
          {{"memcpy", [&] { std::memcpy(to.data(), bytes.data(), bytes.size()); }},
           {"device to host through one pinned buffer", [&] {
              for (uint64_t at = 0; at < memory.size; at += 4 << 20) {
                need(stream->copy_to_host(host->bytes(), {import->range().start + at, 4 << 20}));
                need(stream->synchronize(kWait));
              }
            }},
           {"a round in which all has changed", [&] { need(rounds.iterate()); }, [&] { touch(kDeviceChunk); }}});
  std::deque<DeviceCapture> captures;
  for (int i = 0; i < repeats; ++i) {
    captures.emplace_back(std::vector<DeviceSource>{{&target, 1}}, std::vector<Device*>{device.get()}, sink, options);
    need(captures.back().iterate());
  }
  touch(100 * kDeviceChunk);
  size_t turn = 0;
  compare("a stop at which 1 percent is dirty", bytes.size(), repeats,
          {{"hash of the memory, one thread", [&] { (void)hash_chunk(bytes.data(), bytes.size()); }},
           {"API lock, drain, hash, copy what differs, open", [&] {
              DeviceStop stop = need(DeviceStop::begin({&target}, kWait));
              need(captures[turn++].delta());
              need(stop.end());
            }}});
}

void filling(std::vector<std::byte>& bytes, std::vector<std::byte>& to, int repeats) {
  const Allocation old{1, {uint64_t{1} << 40}, bytes.size(), 0, MemoryKind::kOwned, true};
  store::DeviceMemory memory;
  memory.allocations = {{1, old.address.value, old.size, "", 0, {}}};
  std::vector<std::vector<ChunkHash>> hashes(1);
  for (size_t at = 0; at < bytes.size(); at += kDeviceChunk) hashes[0].push_back(hash_chunk(&bytes[at], kDeviceChunk));
  Nowhere content;
  content.bytes = bytes.data(), content.base = old.address;
  auto gpu = make_gpu(bytes.size());
  auto device = make_emulated_device(gpu);
  EmulatedTarget target(1, {gpu}, {}, std::vector<Allocation>{old});
  need(target.lock_api(kWait));
  std::unique_ptr<DeviceFill> fill;
  compare("memory filled, and hashed in the end", bytes.size(), repeats,
          {{"memcpy", [&] { std::memcpy(to.data(), bytes.data(), bytes.size()); }},
           {"eager fill", [&] { need(fill->eager()); }, [&] {
              if (fill) need(target.release(1));
              fill = std::make_unique<DeviceFill>(target, memory, hashes, std::vector<Device*>{device.get()}, content,
                                                  StagingOptions());
              need(fill->attach());
            }}});
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256) << 20;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 5;
  std::vector<std::byte> from(bytes), to(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (i + 1) * kHashP2;
    std::memcpy(&from[i], &word, 8);
  }
  hashing(from, to, repeats);
  pipeline(from, to, repeats);
  filling(from, to, repeats);
}
