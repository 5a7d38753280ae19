// What lib/device/device.h promises, asked of every device there is: the emulated one, and the CUDA one on the stand-in
// driver (with CKPT_TEST_GPU=1 on the machine's own).
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "plugins/cuda/cuda_device.h"
#include "plugins/cuda/kernel_image.h"
#include "tests/support/emulated/device.h"
#include "tests/support/fixtures.h"

using namespace ckpt;
using namespace ckpt::device;

namespace {

constexpr uint64_t kSecond = 1'000'000;
constexpr uint64_t kCapacity = 96 << 20;

bool on_gpu() { return ::getenv("CKPT_TEST_GPU") != nullptr; }

std::unique_ptr<Device> emulated() {
  EmulatedGpu::Options options;
  options.capacity = kCapacity, options.max_delay_us = 100;
  return make_emulated_device(EmulatedGpu::create(options));
}

std::unique_ptr<Device> cuda_device() {
  if (!on_gpu()) {
    ::setenv("CKPT_CUDA_DRIVER", STANDIN_DRIVER, 1);
    ::setenv("CKPT_CUDA_KERNELS", STANDIN_KERNELS, 1);
    ::setenv("CKPT_STANDIN_CAPACITY", std::to_string(kCapacity).c_str(), 1);
    ::setenv("CKPT_STANDIN_SEED", "3", 1);
  }
  auto driver = cuda::Driver::open();
  REQUIRE_MESSAGE(driver, driver.error().message);
  auto kernels = cuda::read_kernels();
  REQUIRE(kernels);
  auto device = cuda::open_device(*driver, "", *kernels);
  REQUIRE_MESSAGE(device, device.error().message);
  return std::move(*device);
}

/// Runs the test once for each device.
#define FOR_EACH_DEVICE(device)                                                                                       \
  std::unique_ptr<Device> device;                                                                                     \
  SUBCASE("emulated") { device = emulated(); }                                                                        \
  SUBCASE("cuda") { device = cuda_device(); }                                                                         \
  if (device == nullptr) return

template <class T>
T must(Result<T> result) {
  REQUIRE_MESSAGE(result, result.error().message);
  return std::move(*result);
}
void must(Result<void> result) { REQUIRE_MESSAGE(result, result.error().message); }

void fill(MutableByteSpan bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += 8) {
    const uint64_t word = (seed + i) * 0x9E3779B97F4A7C15u;
    std::memcpy(bytes.data() + i, &word, 8);
  }
}

bool same(ByteSpan a, ByteSpan b) { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0; }

/// A stream and pinned memory: `data` of so many bytes, and room for hashes.
struct Desk {
  std::unique_ptr<Stream> stream;
  std::unique_ptr<HostBuffer> host;
  MutableByteSpan data;
  std::span<ChunkHash> hashes;
  Desk(Device& device, uint64_t bytes)
      : stream(must(device.create_stream())),
        host(must(device.allocate_pinned(bytes + 65536))),
        data(host->bytes().first(bytes)),
        hashes(reinterpret_cast<ChunkHash*>(host->bytes().data() + bytes), 4096) {}
  void wait() { must(stream->synchronize(30 * kSecond)); }
};

}  // namespace

TEST_CASE("properties: a GPU's UUID, its size, and a granularity that is a power of two") {
  FOR_EACH_DEVICE(device);
  const Properties& properties = device->properties();
  CHECK(properties.uuid.size() == 40);
  CHECK(properties.uuid.starts_with("GPU-"));
  CHECK(properties.granularity >= kMinChunk);
  CHECK((properties.granularity & (properties.granularity - 1)) == 0);
  CHECK(properties.total_bytes > 0);
}

TEST_CASE("copies: to the device, on it and back, in the order of the stream") {
  FOR_EACH_DEVICE(device);
  const uint64_t size = 3 * device->properties().granularity;
  Desk desk(*device, size);
  auto one = must(device->allocate(size)), other = must(device->allocate(size));
  fill(desk.data, 1);
  const std::vector<std::byte> before(desk.data.begin(), desk.data.end());
  must(desk.stream->copy_to_device(one->range(), desk.data));
  must(desk.stream->copy(other->range().start, one->range()));
  desk.wait();
  std::memset(desk.data.data(), 0, size);
  must(desk.stream->copy_to_host(desk.data.subspan(4096, 65536), {other->range().start + 4096, 65536}));
  desk.wait();
  CHECK(same(desk.data.subspan(4096, 65536), ByteSpan(before).subspan(4096, 65536)));
  CHECK(desk.data[4095] == std::byte{0});
}

TEST_CASE("hashes: of each chunk, the same as on the CPU, for every size of chunk") {
  FOR_EACH_DEVICE(device);
  const uint64_t size = 4 << 20;
  Desk desk(*device, size);
  auto buffer = must(device->allocate(size));
  fill(desk.data, 2);
  must(desk.stream->copy_to_device(buffer->range(), desk.data));
  for (uint64_t chunk = kMinChunk; chunk <= kMaxChunk; chunk *= 2) {
    CAPTURE(chunk);
    must(desk.stream->hash({buffer->range().start, size}, chunk, desk.hashes.first(size / chunk)));
    desk.wait();
    for (uint64_t i = 0; i < size / chunk; ++i)
      CHECK(desk.hashes[i] == hash_chunk(desk.data.data() + i * chunk, chunk));
  }
}

TEST_CASE("copy and hash: chunks from here and there to one run, on the device and in pinned memory") {
  FOR_EACH_DEVICE(device);
  const uint64_t chunk = kMinChunk, chunks = 64, size = chunks * chunk;
  Desk desk(*device, size);
  auto target = must(device->allocate_pinned(size));
  auto from = must(device->allocate(size)), to = must(device->allocate(size));
  fill(desk.data, 3);
  must(desk.stream->copy_to_device(from->range(), desk.data));
  std::vector<Address> places;
  for (uint64_t i = 0; i < chunks; i += 3) places.push_back(from->range().start + (chunks - 1 - i) * chunk);
  const uint64_t taken = places.size();
  for (Address at : {to->range().start, target->device_range().start}) {
    {
      std::vector<Address> passing = places;
      must(desk.stream->copy_and_hash(passing, chunk, at, desk.hashes.first(taken)));
      std::fill(passing.begin(), passing.end(), Address{});  // it was taken over
    }
    if (at == to->range().start)
      must(desk.stream->copy_to_host(target->bytes().first(taken * chunk), {at, taken * chunk}));
    desk.wait();
    for (uint64_t i = 0; i < taken; ++i) {
      ByteSpan wanted = desk.data.subspan((chunks - 1 - 3 * i) * chunk, chunk);
      CHECK(same(target->bytes().subspan(i * chunk, chunk), wanted));
      CHECK(desk.hashes[i] == hash_chunk(wanted.data(), chunk));
    }
    std::memset(target->bytes().data(), 0, size);
  }
}

TEST_CASE("copy and hash: the hash is of the bytes that arrive, whoever writes the source meanwhile") {
  FOR_EACH_DEVICE(device);
  const uint64_t size = 2 << 20, chunk = kMinChunk;
  Desk desk(*device, size), writer(*device, size);
  auto from = must(device->allocate(size)), to = must(device->allocate(size));
  must(desk.stream->copy_to_device(from->range(), desk.data));
  desk.wait();
  std::vector<Address> places;
  for (uint64_t i = 0; i < size / chunk; ++i) places.push_back(from->range().start + i * chunk);
  for (uint64_t round = 0; round < 20; ++round) {
    fill(writer.data, round);
    for (int i = 0; i < 4; ++i) must(writer.stream->copy_to_device(from->range(), writer.data));
    must(desk.stream->copy_and_hash(places, chunk, to->range().start, desk.hashes.first(places.size())));
    must(desk.stream->copy_to_host(desk.data, to->range()));
    desk.wait();
    for (uint64_t i = 0; i < places.size(); ++i)
      CHECK(desk.hashes[i] == hash_chunk(desk.data.data() + i * chunk, chunk));
    writer.wait();
  }
}

TEST_CASE("copy and hash: more chunks than one launch takes") {
  FOR_EACH_DEVICE(device);
  const uint64_t chunk = kMinChunk, size = 2 << 20, repeats = 80, chunks = repeats * size / chunk;
  if (chunks * chunk + 3 * size > kCapacity * 2) return;
  Desk desk(*device, size);
  std::unique_ptr<HostBuffer> target = must(device->allocate_pinned(chunks * chunk));
  auto from = must(device->allocate(size));
  fill(desk.data, 9);
  must(desk.stream->copy_to_device(from->range(), desk.data));
  std::vector<Address> places;
  for (uint64_t i = 0; i < chunks; ++i) places.push_back(from->range().start + i % (size / chunk) * chunk);
  must(desk.stream->copy_and_hash(places, chunk, target->device_range().start, desk.hashes.first(chunks)));
  desk.wait();
  for (uint64_t i = 0; i < chunks; i += 97)
    CHECK(desk.hashes[i] == hash_chunk(target->bytes().data() + i * chunk, chunk));
  CHECK(desk.hashes[chunks - 1] == desk.hashes[size / chunk - 1]);
}

TEST_CASE("events: done when what is before them is, waited for by the host with a limit and by other streams") {
  FOR_EACH_DEVICE(device);
  const uint64_t size = 4 << 20;
  Desk first(*device, size), second(*device, size);
  auto buffer = must(device->allocate(size));
  for (uint64_t round = 0; round < 10; ++round) {
    fill(first.data, round);
    must(first.stream->copy_to_device(buffer->range(), first.data));
    auto written = must(first.stream->record());
    must(second.stream->wait(*written));
    must(second.stream->copy_to_host(second.data, buffer->range()));
    auto read = must(second.stream->record());
    must(read->wait(30 * kSecond));
    CHECK(read->done());
    CHECK(written->done());
    CHECK(same(first.data, second.data));
  }
}

TEST_CASE("export and import: one memory, which lives as long as anybody has it") {
  FOR_EACH_DEVICE(device);
  const uint64_t size = device->properties().granularity;
  Desk desk(*device, size);
  auto mine = must(device->allocate(size));
  fill(desk.data, 4);
  must(desk.stream->copy_to_device(mine->range(), desk.data));
  desk.wait();
  UniqueFd fd = must(mine->export_fd());
  auto imported = must(device->import(fd.get(), size));
  fd.reset();
  CHECK(imported->range().start != mine->range().start);
  CHECK(imported->range().size == size);
  mine.reset();
  const std::vector<std::byte> before(desk.data.begin(), desk.data.end());
  std::memset(desk.data.data(), 0, size);
  must(desk.stream->copy_to_host(desk.data, imported->range()));
  desk.wait();
  CHECK(same(desk.data, before));
  CHECK_FALSE(device->import(STDIN_FILENO, size));
}

TEST_CASE("room: what is taken is not free, too much is kNoRoom, and all of it comes back") {
  FOR_EACH_DEVICE(device);
  if (on_gpu()) return;  // others use it
  const uint64_t before = must(device->memory_info()).free_bytes;
  {
    auto taken = must(device->allocate(5 << 20));
    CHECK(taken->range().size % device->properties().granularity == 0);
    CHECK(taken->range().size >= 5 << 20);
    CHECK(must(device->memory_info()).free_bytes == before - taken->range().size);
    auto more = device->allocate(before);
    REQUIRE_FALSE(more);
    CHECK(more.error().code == Code::kNoRoom);
  }
  CHECK(must(device->memory_info()).free_bytes == before);
}

TEST_CASE("threads: a device is used by several at once") {
  FOR_EACH_DEVICE(device);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      const uint64_t size = 1 << 20;
      auto stream = device->create_stream();
      auto host = device->allocate_pinned(2 * size);
      auto buffer = device->allocate(size);
      if (!stream || !host || !buffer) return void(++wrong);
      MutableByteSpan in = (*host)->bytes().first(size), out = (*host)->bytes().subspan(size);
      for (uint64_t round = 0; round < 10; ++round) {
        fill(in, seed * 100 + round);
        const Range range{(*buffer)->range().start, size};
        bool done = (*stream)->copy_to_device(range, in) && (*stream)->copy_to_host(out, range) &&
                    (*stream)->synchronize(30 * kSecond);
        if (!done || !same(in, out)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("without kernels everything but hashing works") {
  if (on_gpu()) return;
  cuda_device();
  auto device = must(cuda::open_device(must(cuda::Driver::open()), "", ""));
  Desk desk(*device, kMinChunk);
  auto buffer = must(device->allocate(kMinChunk));
  must(desk.stream->copy_to_device({buffer->range().start, kMinChunk}, desk.data));
  auto refused = desk.stream->hash({buffer->range().start, kMinChunk}, kMinChunk, desk.hashes.first(1));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kUnsupported);
  desk.wait();
  CHECK_FALSE(cuda::open_device(must(cuda::Driver::open()), "GPU-00000000-0000-0000-0000-000000000000", ""));
}
