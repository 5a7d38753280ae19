// Much memory of which each step, or each 20 ms (argument `always`), changes a part. Arguments: bytes (32M), percent
// (1), always or hidden: like always, by launches whose arguments do not show what they write.
#include <atomic>
#include <mutex>
#include <thread>

#include "tests/device/programs/program.h"

namespace {

constexpr size_t kPart = 1 << 20;

struct Block {
  CUdeviceptr at;
  std::vector<uint64_t> seeds;  ///< of its parts
};
std::vector<Block> blocks;
const Words* words;
CUfunction scatter = nullptr;
CUdeviceptr table = 0;  ///< of addresses, for `scatter`; 0: parts are written openly
size_t changes_of_a_step = 1;
uint64_t random_state = 99;
std::mutex turn;

uint64_t next() { return random_state = mix(random_state, 1); }

void write_part(Block& block, size_t part) {
  block.seeds[part] = next();
  const CUdeviceptr at = block.at + part * kPart;
  if (table == 0) return words->write(at, kPart, block.seeds[part]);
  uint64_t entries = kPart / 8;
  std::vector<CUdeviceptr> addresses(entries);
  for (size_t i = 0; i < entries; ++i) addresses[i] = at + i * 8;
  CU(cuMemcpyHtoD_v2(table, addresses.data(), kPart));
  launch(scatter, nullptr, {&table, &entries, &block.seeds[part]});
}

void change(int) {
  std::lock_guard hold(turn);
  for (size_t i = 0; i < changes_of_a_step; ++i) {
    Block& block = blocks[next() % blocks.size()];
    write_part(block, next() % block.seeds.size());
  }
  CU(cuCtxSynchronize());
}

uint64_t bytes_of(const char* text) {
  char* end = nullptr;
  uint64_t value = strtoull(text, &end, 0);
  return *end == 'G' ? value << 30 : *end == 'M' ? value << 20 : value;
}

}  // namespace

int main(int argc, char** argv) {
  target_init(argc, argv);
  uint64_t size = argc > 2 ? bytes_of(argv[2]) : 32 << 20;
  double percent = argc > 3 ? atof(argv[3]) : 1;
  bool always = argc > 4;
  CUcontext context = driver_start();
  CUmodule module = kernels_load();
  words = new Words(module);
  scatter = kernel(module, "scatter");
  const uint64_t block_size = size >= (8ull << 30) ? 1ull << 30 : 16 << 20;
  for (uint64_t done = 0; done < size; done += block_size) {
    Block block{0, std::vector<uint64_t>(block_size / kPart)};
    CU(cuMemAlloc_v2(&block.at, block_size));
    for (size_t part = 0; part < block.seeds.size(); ++part) write_part(block, part);
    blocks.push_back(std::move(block));
  }
  changes_of_a_step = static_cast<size_t>(static_cast<double>(size / kPart) * percent / 100 + 1);
  change(0);
  if (always && strcmp(argv[4], "hidden") == 0) CU(cuMemAlloc_v2(&table, kPart));
  std::atomic<bool> stop{false};
  std::thread loop;
  if (always) {
    loop = std::thread([&] {
      CU(cuCtxSetCurrent(context));
      for (; !stop; sleep_ms(20)) change(0);
    });
  }
  target_ready();
  target_wait(change);
  stop = true;
  if (loop.joinable()) loop.join();
  for (const Block& block : blocks)
    for (size_t part = 0; part < block.seeds.size(); ++part)
      words->check(block.at + part * kPart, kPart, block.seeds[part]);
  target_pass();
}
