// The capture pipeline over the driver's device and the agent of a program that trains all the while: iterations,
// a snapshot, a delta with its parent, offloading, and memory taken away and filled from the image, eagerly and lazily.
// The program compares every loss and every weight with a run of its own at the end. (With CKPT_TEST_GPU=1 on the
// machine's own driver.)
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "lib/memory/device/capture.h"
#include "lib/memory/device/fill.h"
#include "lib/memory/device/manifest.h"
#include "lib/memory/device/offload.h"
#include "plugins/cuda/agent_client.h"
#include "plugins/cuda/cuda_device.h"
#include "plugins/cuda/kernel_image.h"
#include "tests/device/training.h"

using namespace ckpt;
using namespace ckpt::capture;
using cuda::AgentTarget;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSecond = 1'000'000;
constexpr int kSpace = 5;

bool on_gpu() { return ::getenv("CKPT_TEST_GPU") != nullptr; }

template <class T>
T must(Result<T> result) {
  REQUIRE_MESSAGE(result, result.error().text());
  return std::move(*result);
}
void must(Result<void> result) { REQUIRE_MESSAGE(result, result.error().text()); }

struct Place {
  fs::path path;
  Place() {
    std::string name = (fs::temp_directory_path() / "ckpt-pipeline-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
    if (on_gpu()) return;
    ::setenv("CKPT_CUDA_DRIVER", STANDIN_DRIVER, 1);
    ::setenv("CKPT_CUDA_KERNELS", STANDIN_KERNELS, 1);
  }
  ~Place() {
    std::error_code ec;
    fs::remove_all(path, ec);
  }
};

using Content = std::map<uint64_t, std::vector<std::byte>>;

/// What the target's owned memory is now, copied through imports of its own. API locked.
Content look(AgentTarget& target, device::Device& device) {
  Content out;
  auto stream = must(device.create_stream());
  for (const device::Allocation& a : must(target.allocations())) {
    if (a.kind != device::MemoryKind::kOwned) continue;
    auto import = must(device.import(must(target.export_allocation(a.id)).get(), a.size));
    auto& bytes = out[a.address.value];
    bytes.resize(a.size);
    must(stream->copy_to_host(bytes, import->range()));
    must(stream->synchronize(60 * kSecond));
  }
  return out;
}

Content content_of(const store::ImageReader& image) {
  Content out;
  ImageContent content(image);
  for (const store::DeviceAllocation& a : image.manifest().tree.devices.at(0).allocations) {
    auto& bytes = out[a.address];
    bytes.resize(a.size);
    for (uint64_t at = 0; at < a.size; at += kDeviceChunk)
      must(content.read(kSpace, {a.address + at}, MutableByteSpan(bytes).subspan(at, kDeviceChunk)));
  }
  return out;
}

DeviceOptions options() {
  DeviceOptions out;
  out.staging.block_bytes = 1 << 20, out.staging.blocks = 4;
  out.staging.timeout_us = out.stop_timeout_us = 60 * kSecond;
  return out;
}

/// An image under way.
struct Taking {
  std::unique_ptr<store::ImageWriter> writer;
  ImageSink sink;
  DeviceCapture capture;
  Taking(const fs::path& dir, const fs::path& parent, AgentTarget& target, device::Device& device)
      : writer(must(store::ImageWriter::create(dir, {.parent = parent}))),
        sink(*writer),
        capture({{&target, kSpace}}, {&device}, sink, options()) {}
  void commit() {
    store::Manifest manifest;
    manifest.kind = "dump";
    store::ProcessImage& process = manifest.tree.processes.emplace_back();
    process.pid = 1;
    process.threads.resize(1);
    process.threads[0].tid = 1;
    manifest.tree.devices.push_back(must(describe_device_memory(capture.map(), 0, 0, *writer)));
    must(writer->commit(manifest));
  }
};

/// Takes all owned memory away and fills it anew from the image. The API is locked before, and open after.
void take_away_and_fill(AgentTarget& target, device::Device& device, const fs::path& image, bool lazily) {
  auto reader = must(store::ImageReader::open(image));
  const store::DeviceMemory& memory = reader->manifest().tree.devices.at(0);
  std::vector<std::vector<device::ChunkHash>> hashes;
  for (const store::DeviceAllocation& a : memory.allocations) hashes.push_back(must(read_device_hashes(*reader, a)));
  for (const store::DeviceAllocation& a : memory.allocations) must(target.release(a.id));
  ImageContent content(*reader);
  DeviceFill fill(target, memory, hashes, {&device}, content, options().staging);
  must(fill.attach());
  const FillReport report = must(lazily ? fill.lazy() : fill.eager());
  CHECK(report.chunks != 0);
  if (!lazily) must(target.unlock_api());
}

}  // namespace

TEST_CASE(
    "a training loop is captured in every way, loses its memory twice and gets it back, and is right to the bit") {
  Place place;
  Training training(place.path);
  auto driver = must(cuda::Driver::open());
  const std::string kernels = must(cuda::read_kernels());
  auto target = must(AgentTarget::connect(training.pid, 10 * kSecond));
  auto device = must(cuda::open_device(driver, must(target->device_uuid(0)), kernels));

  const fs::path first = place.path / "first", second = place.path / "second", third = place.path / "third";
  {
    Taking taking(first, {}, *target, *device);
    const DevicePass round = must(taking.capture.iterate());
    CHECK(round.chunks >= 128);  // weights and momenta
    auto stop = must(DeviceStop::begin({target.get()}, 60 * kSecond));
    must(taking.capture.scan());
    const Content truth = look(*target, *device);
    must(taking.capture.begin_cow());
    must(stop.end());
    const auto shot = must(taking.capture.end_cow());
    CHECK(shot.lost == 0);
    must(taking.capture.say_kept());
    taking.commit();
    MESSAGE(shot.from_saved << " chunks from what was set aside");
    CHECK(content_of(*must(store::ImageReader::open(first))) == truth);
  }
  {
    Taking taking(second, first, *target, *device);
    must(expect_parent(taking.capture.map(), *must(store::ImageReader::open(first)),
                       must(store::ImageReader::open(first))->manifest().tree.devices.at(0)));
    (void)must(taking.capture.iterate());
    auto stop = must(DeviceStop::begin({target.get()}, 60 * kSecond));
    (void)must(taking.capture.delta());
    const Content truth = look(*target, *device);
    taking.commit();
    CHECK(content_of(*must(store::ImageReader::open(second))) == truth);
    {
      auto offload = must(DeviceOffload::offload({target.get()}, {device.get()}));
      CHECK(offload.bytes() >= 8 << 20);
      must(offload.give_back());
    }
    CHECK(look(*target, *device) == truth);
    stop.keep();
  }
  take_away_and_fill(*target, *device, second, false);
  {
    Taking taking(third, second, *target, *device);
    must(DeviceStop::begin({target.get()}, 60 * kSecond)).keep();
    (void)must(taking.capture.delta());
    taking.commit();
  }
  take_away_and_fill(*target, *device, third, true);
  device.reset();
  target.reset();
  const std::string result = training.result();
  CHECK_MESSAGE(result.starts_with("pass"), result << text_of(place.path / "log").substr(0, 2000));
}
