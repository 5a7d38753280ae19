#include <sys/mount.h>

#include "lib/memory/device/manifest.h"
#include "tests/support/skip.h"
#include "tests/unit/memory/device_helpers.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::capture;
using namespace ckpt::capture::test;
using ckpt::test::TempDir;
using store::ImageReader;
using store::ImageWriter;

namespace {

/// A whole image of the device memory alone, with rounds before the stop.
Result<store::Manifest> save(World& world, const std::filesystem::path& dir, const std::filesystem::path& parent,
                             int rounds, const std::function<void()>& between = {}) {
  ImageWriter::Options options;
  options.parent = parent;
  CKPT_TRY_ASSIGN(auto writer, ImageWriter::create(dir, options));
  ImageSink sink(*writer);
  DeviceCapture capture(world.sources(), world.device_list(), sink, small_options());
  if (!parent.empty()) {
    CKPT_TRY_ASSIGN(auto reader, ImageReader::open(parent));
    for (const store::DeviceMemory& memory : reader->manifest().tree.devices)
      CKPT_TRY(expect_parent(capture.map(), *reader, memory));
  }
  for (int i = 0; i < rounds; ++i) {
    CKPT_TRY_ASSIGN(DevicePass pass, capture.iterate());
    CHECK(pass.chunks != 0);
    if (between) between();
  }
  std::vector<Target*> targets;
  for (auto& target : world.targets) targets.push_back(target.get());
  CKPT_TRY_ASSIGN(DeviceStop stop, DeviceStop::begin(targets, 60 * kSecond));
  CKPT_TRY_ASSIGN(DevicePass pass, capture.delta());
  store::Manifest manifest = store::test::small_manifest();
  manifest.stats.pages_copied = pass.copied;
  for (size_t i = 0; i < world.targets.size(); ++i) {
    CKPT_TRY_ASSIGN(store::DeviceMemory memory, describe_device_memory(capture.map(), i, 0, *writer));
    manifest.tree.devices.push_back(std::move(memory));
  }
  CKPT_TRY(writer->commit(manifest));
  return manifest;
}

/// Everything that the image says of device memory, and that its hashes are those of the bytes.
Content load(const std::filesystem::path& dir) {
  auto reader = ImageReader::open(dir);
  REQUIRE_MESSAGE(reader, why(reader));
  ImageContent content(**reader);
  Content out;
  for (const store::DeviceMemory& memory : (*reader)->manifest().tree.devices) {
    for (const store::DeviceAllocation& a : memory.allocations) {
      auto hashes = read_device_hashes(**reader, a);
      REQUIRE(hashes);
      for (uint64_t i = 0; i < hashes->size(); ++i) {
        Bytes bytes(kDeviceChunk);
        const Address at{a.address + i * kDeviceChunk};
        auto read = content.read(memory.space, at, bytes);
        REQUIRE_MESSAGE(read, why(read));
        CHECK(hash_chunk(bytes.data(), bytes.size()) == (*hashes)[i]);
        out[{memory.space, at.value}] = std::move(bytes);
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("device image: rounds, parents and several processes give the memory of the stop") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    TempDir temp;
    World world(2, 2, seed);
    std::vector<std::vector<Allocation>> all(2);
    for (size_t t = 0; t < 2; ++t) {
      for (uint64_t i = 0; i < 3; ++i) all[t].push_back(world.allocate(2 + i * seed % 5, t, static_cast<int>(i % 2)));
    }
    Writers writers(world, all, seed, true);
    auto first = save(world, temp.path / "a", {}, 2);
    REQUIRE_MESSAGE(first, why(first));
    auto second = save(world, temp.path / "b", temp.path / "a", 1);
    REQUIRE_MESSAGE(second, why(second));
    writers.stop();
    for (auto& target : world.targets) REQUIRE(target->synchronize());
    auto third = save(world, temp.path / "c", temp.path / "b", 0);
    REQUIRE_MESSAGE(third, why(third));
    const Content truth = peek_all(world, all);
    CHECK(load(temp.path / "c") == truth);
    (void)load(temp.path / "a");
    (void)load(temp.path / "b");
    world.check_sound();
  }
}

TEST_CASE("device image: content is stored once over buffers, processes and images") {
  TempDir temp;
  World world(1, 2);
  const Allocation a = world.allocate(8), same = world.allocate(8), other = world.allocate(8, 1),
                   zeros = world.allocate(4);
  auto distinct = [&](size_t target, const Allocation& where, uint64_t from) {
    for (uint64_t i = 0; i < 8; ++i) REQUIRE(world.target(target).launch(0, fill(part(where, i, 1), from + i)));
    REQUIRE(world.target(target).synchronize());
  };
  distinct(0, a, 100), distinct(0, same, 100), distinct(1, other, 100);
  auto first = save(world, temp.path / "a", {}, 0);
  REQUIRE_MESSAGE(first, why(first));
  CHECK(first->stats.saved.same_space == 8 * kDeviceChunk);
  CHECK(first->stats.saved.other_space == 8 * kDeviceChunk);
  CHECK(first->stats.saved.zero == 4 * kDeviceChunk);
  CHECK(first->stats.pages_copied == 24);
  // The same content moved by a buffer, and one new chunk.
  distinct(0, same, 101);
  auto second = save(world, temp.path / "b", temp.path / "a", 0);
  REQUIRE_MESSAGE(second, why(second));
  CHECK(second->stats.pages_copied == 8);
  CHECK(second->stats.saved.parent_unwritten == 20 * kDeviceChunk);
  CHECK(second->stats.saved.chain_elsewhere == 7 * kDeviceChunk);
  CHECK(load(temp.path / "b") == peek_all(world, {{a, same, zeros}, {other}}));
}

TEST_CASE("device image: chunks with pages of zeros between others; what an image does not have is an answer") {
  TempDir temp;
  World world;
  const Allocation a = world.allocate(3);
  for (const uint64_t page : {1, 5, 15, 16, 30}) {
    REQUIRE(world.target().launch(0, fill({a.address + page * store::kPageSize, store::kPageSize}, page)));
  }
  REQUIRE(world.target().synchronize());
  auto saved = save(world, temp.path / "a", {}, 1);
  REQUIRE_MESSAGE(saved, why(saved));
  CHECK(load(temp.path / "a") == peek_all(world, {{a}}));
  auto reader = ImageReader::open(temp.path / "a");
  REQUIRE(reader);
  ImageContent content(**reader);
  Bytes bytes(kDeviceChunk);
  CHECK(content.read(3, a.range().end(), bytes).error().code == Code::kCorrupt);
  CHECK(content.read(4, a.address, bytes).error().code == Code::kCorrupt);
  store::DeviceAllocation beyond = (*reader)->manifest().tree.devices[0].allocations[0];
  beyond.hashes_offset += 1;
  CHECK(read_device_hashes(**reader, beyond).error().code == Code::kCorrupt);
}

TEST_CASE("device image: a full disk leaves no image, and the process as it was") {
  TempDir temp;
  if (::mount("none", temp.path.c_str(), "tmpfs", 0, "size=1m") != 0) {
    ckpt::test::skip("mounting a tmpfs needs root");
    return;
  }
  {
    World world;
    const Allocation a = world.allocate(64);
    std::mt19937_64 rng(1);
    Bytes noise(a.size);
    for (size_t i = 0; i < noise.size(); i += 8) {
      const uint64_t word = rng();
      std::memcpy(noise.data() + i, &word, 8);
    }
    REQUIRE(world.target().write(0, a.address, noise));
    REQUIRE(world.target().synchronize());
    for (int rounds = 0; rounds < 2; ++rounds) {
      auto saved = save(world, temp.path / "a", {}, rounds);
      REQUIRE_FALSE(saved);
      CHECK(saved.error().code == Code::kNoRoom);
      CHECK(world.target().gate_open());
      CHECK(std::filesystem::is_empty(temp.path));
      CHECK(world.target().peek(a.range()) == noise);
    }
    world.check_sound();
  }
  ::umount(temp.path.c_str());
}
