// E1: the ceilings of one machine, through ckpt's own device: hashing and copying with hashing at each size of chunk
// against a plain copy on the device; rings of pinned memory to the host and back; host memory to host memory; what it
// costs to pin.
//
//   e1 [bytes of device memory = 4G] [bytes of host memory copied = 4G]
#include <functional>

#include "plugins/cuda/cuda_device.h"
#include "plugins/cuda/kernel_image.h"
#include "tests/device/experiments/experiment.h"

using namespace ckpt;
using device::Address;
using device::ChunkHash;

namespace {

constexpr uint64_t kLong = 600'000'000;

template <class T>
T must(Result<T> result) {
  if (!result) target_fail("%s: %s", result.error().subject.c_str(), result.error().message.c_str());
  return std::move(*result);
}
void must(Result<void> result) {
  if (!result) target_fail("%s: %s", result.error().subject.c_str(), result.error().message.c_str());
}

/// The shortest of some runs, after one that does not count.
double best(device::Stream& stream, const std::function<void()>& run, int repeats = 5) {
  double shortest = 1e9;
  for (int i = 0; i <= repeats; ++i) {
    const double began = seconds();
    run();
    must(stream.synchronize(kLong));
    if (i > 0) shortest = std::min(shortest, seconds() - began);
  }
  return shortest;
}

double gigabytes(double bytes, double time) { return bytes / time * 1e-9; }

}  // namespace

int main(int argc, char** argv) {
  experiment_begin(argc, argv);
  const uint64_t size = argument(argc, argv, 1, uint64_t{4} << 30),
                 host_bytes = argument(argc, argv, 2, uint64_t{4} << 30);
  auto device = must(cuda::open_device(must(cuda::Driver::open()), "", must(cuda::read_kernels())));
  auto stream = must(device->create_stream());
  auto from = must(device->allocate(size)), to = must(device->allocate(size));
  auto hashes = must(device->allocate_pinned(size / device::kMinChunk * sizeof(ChunkHash)));
  auto* first = reinterpret_cast<ChunkHash*>(hashes->bytes().data());

  const double copied = gigabytes(static_cast<double>(size),
                                  best(*stream, [&] { must(stream->copy(to->range().start, from->range())); }));
  report("E1", "device to device, payload", copied, "GB/s");
  for (uint64_t chunk : {device::kMinChunk, uint64_t{256} << 10, device::kMaxChunk}) {
    const std::string name = std::to_string(chunk >> 10) + " KiB chunks";
    const uint64_t chunks = size / chunk;
    const std::span<ChunkHash> out(first, chunks);
    double rate = gigabytes(static_cast<double>(size), best(*stream, [&] {
                              must(stream->hash({from->range().start, size}, chunk, out));
                            }));
    report("E1", "hash, " + name, rate, "GB/s");
    report("E1", "hash, " + name + ", of the copy's traffic (2 x payload); wanted: 0.8", rate / (2 * copied), "ratio");
    std::vector<Address> places;
    for (uint64_t i = 0; i < chunks; ++i) places.push_back(from->range().start + (i * 7 + 3) % chunks * chunk);
    rate = gigabytes(static_cast<double>(size),
                     best(*stream, [&] { must(stream->copy_and_hash(places, chunk, to->range().start, out)); }));
    report("E1", "copy and hash, " + name + ", payload", rate, "GB/s");
  }

  for (uint64_t ring : {uint64_t{4} << 20, uint64_t{32} << 20, uint64_t{256} << 20}) {
    if (ring > size) continue;
    const double began = seconds();
    auto host = must(device->allocate_pinned(2 * ring));
    const std::string name = "ring of 2 x " + std::to_string(ring >> 20) + " MiB";
    report("E1", "pinning, " + name, gigabytes(static_cast<double>(2 * ring), seconds() - began), "GB/s");
    const uint64_t rounds = std::max<uint64_t>(1, host_bytes / ring);
    auto each = [&](auto copy) {
      const double time = best(*stream, [&] {
        for (uint64_t i = 0; i < rounds; ++i)
          copy(from->range().start + i % (size / ring) * ring, host->bytes().subspan(i % 2 * ring, ring));
      }, 3);
      return gigabytes(static_cast<double>(rounds * ring), time);
    };
    const double down = each([&](Address at, MutableByteSpan part) { must(stream->copy_to_host(part, {at, ring})); });
    const double up = each([&](Address at, MutableByteSpan part) { must(stream->copy_to_device({at, ring}, part)); });
    report("E1", "device to host, " + name, down, "GB/s");
    report("E1", "host to device, " + name, up, "GB/s");
    std::vector<std::byte> pageable(ring);
    double shortest = 1e9;
    for (int i = 0; i < 4; ++i) {
      const double start = seconds();
      memcpy(pageable.data(), host->bytes().data(), ring);
      shortest = std::min(shortest, seconds() - start);
    }
    const double rate = gigabytes(static_cast<double>(ring), shortest);
    report("E1", "pinned to pageable memory, one thread, " + std::to_string(ring >> 20) + " MiB", rate, "GB/s");
  }
  return 0;
}
