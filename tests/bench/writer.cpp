// What the image writer costs beside a plain copy: blocks in memory are written as an image, and the same bytes by
// plain pwrite, 1 MiB at a time, with as many threads, to the same folder; in turn, the medians and their ratio are
// printed.
//
//   bench_writer FOLDER [MIB] [THREADS] [REPEATS]
//
// Contents: noise; weights (bfloat16, normal, which zstd shrinks by less than is worth its time); text.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/store/image.h"

using namespace ckpt;
using namespace ckpt::store;

namespace {

constexpr size_t kStep = 1 << 20;

struct Setup {
  std::filesystem::path folder;
  size_t bytes = size_t{512} << 20;
  unsigned threads = 2;
  int repeats = 5;
};

using Fill = std::function<void(std::byte* at, size_t size, std::mt19937_64& rng)>;

void noise(std::byte* at, size_t size, std::mt19937_64& rng) {
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = rng();
    std::memcpy(at + i, &word, 8);
  }
}

/// A table of 64Ki normal values, drawn from at random: as skewed in their upper bytes as weights are.
void weights(std::byte* at, size_t size, std::mt19937_64& rng) {
  static const std::vector<uint16_t> kValues = [] {
    std::mt19937_64 own(1);
    std::normal_distribution<float> normal(0, 0.02F);
    std::vector<uint16_t> out(1 << 16);
    for (uint16_t& v : out) v = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(own)) >> 16);
    return out;
  }();
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = rng();
    for (size_t k = 0; k < 4; ++k) std::memcpy(at + i + 2 * k, &kValues[word >> (16 * k) & 0xffff], 2);
  }
}

void text(std::byte* at, size_t size, std::mt19937_64& rng) {
  std::string line;
  for (size_t i = 0; i < size; i += line.size()) {
    line = fmt::format("line {} of a page that compresses\n", rng() % 100000);
    std::memcpy(at + i, line.data(), std::min(line.size(), size - i));
  }
}

void in_threads(unsigned threads, const std::function<void(unsigned)>& work) {
  std::vector<std::thread> pool;
  for (unsigned i = 0; i < threads; ++i) pool.emplace_back(work, i);
  for (std::thread& thread : pool) thread.join();
}

void must(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::exit(1);
}

double cpu_seconds() {
  struct rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Took {
  double seconds = 0, cpu = 0;
};

Took timed(const std::function<void()>& work) {
  const double cpu = cpu_seconds();
  Stopwatch watch;
  work();
  return {static_cast<double>(watch.elapsed_us()) / 1e6, cpu_seconds() - cpu};
}

/// The floor: nothing but the copy into the files, made durable.
void plain_copy(const Setup& setup, const std::byte* data) {
  in_threads(setup.threads, [&](unsigned thread) {
    const std::string path = setup.folder / ("plain." + std::to_string(thread));
    int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    must(fd >= 0, path.c_str());
    off_t to = 0;
    for (size_t at = thread * kStep; at < setup.bytes; at += setup.threads * kStep, to += kStep) {
      must(::pwrite(fd, data + at, kStep, to) == static_cast<ssize_t>(kStep), "pwrite");
    }
    must(::fsync(fd) == 0, "fsync");
    ::close(fd);
  });
}

void write_image(const Setup& setup, const std::byte* data) {
  auto writer = ImageWriter::create(setup.folder / "image", {});
  must(writer.has_value(), "create");
  in_threads(setup.threads, [&](unsigned thread) {
    for (size_t at = thread * kStep; at < setup.bytes; at += setup.threads * kStep) {
      for (size_t in = 0; in < kStep; in += kBlockSize) {
        Block block;
        block.address = uint64_t{1} << 32 | (at + in);
        block.data_mask = 0xffff;
        block.data = ByteSpan(data + at + in, kBlockSize);
        must((*writer)->add_block(block).has_value(), "add_block");
      }
    }
  });
  Manifest manifest;
  manifest.kind = "dump";
  ProcessImage& process = manifest.tree.processes.emplace_back();
  process.pid = 1, process.space = 0;
  process.threads.resize(1);
  process.threads[0].tid = 1;
  must((*writer)->commit(manifest).has_value(), "commit");
}

Took median(std::vector<Took> all) {
  std::sort(all.begin(), all.end(), [](const Took& a, const Took& b) { return a.seconds < b.seconds; });
  return all[all.size() / 2];
}

void run(const Setup& setup, const char* name, const Fill& fill, std::byte* data) {
  in_threads(setup.threads, [&](unsigned thread) {
    std::mt19937_64 rng(thread);
    for (size_t at = thread * kStep; at < setup.bytes; at += setup.threads * kStep) fill(data + at, kStep, rng);
  });
  std::vector<Took> plain, image;
  for (int i = 0; i < setup.repeats; ++i) {
    plain.push_back(timed([&] { plain_copy(setup, data); }));
    for (unsigned thread = 0; thread < setup.threads; ++thread)
      std::filesystem::remove(setup.folder / ("plain." + std::to_string(thread)));
    image.push_back(timed([&] { write_image(setup, data); }));
    std::filesystem::remove_all(setup.folder / "image");
  }
  const double gib = static_cast<double>(setup.bytes) / (1 << 30);
  const Took floor = median(plain), ours = median(image);
  fmt::print(
      "{:8} copy {:5.2f} s/GiB ({:.2f} CPU)   image {:5.2f} s/GiB ({:.2f} CPU)   {:3.0f}% of the copy's throughput\n",
      name, floor.seconds / gib, floor.cpu / gib, ours.seconds / gib, ours.cpu / gib,
      100 * floor.seconds / ours.seconds);
}

}  // namespace

int main(int count, char** argument) {
  if (count < 2) return std::fputs("usage: bench_writer FOLDER [MIB] [THREADS] [REPEATS]\n", stderr), 2;
  Setup setup;
  setup.folder = std::filesystem::path(argument[1]) / fmt::format("bench-writer-{}", ::getpid());
  if (count > 2) setup.bytes = std::stoull(argument[2]) << 20;
  if (count > 3) setup.threads = static_cast<unsigned>(std::stoul(argument[3]));
  if (count > 4) setup.repeats = std::stoi(argument[4]);
  std::filesystem::create_directories(setup.folder);
  std::vector<std::byte> data(setup.bytes);
  run(setup, "noise", noise, data.data());
  run(setup, "weights", weights, data.data());
  run(setup, "text", text, data.data());
  std::filesystem::remove_all(setup.folder);
  return 0;
}
