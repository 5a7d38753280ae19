// A process and its forked workers, each with a context of its own: they fork before the driver is started.
#include "tests/device/programs/program.h"

namespace {

constexpr size_t kBytes = 3 << 20;

struct Device {
  Words* words;
  CUdeviceptr at;
  explicit Device(uint64_t seed) {
    driver_start();
    words = new Words(kernels_load());
    CU(cuMemAlloc_v2(&at, kBytes));
    words->write(at, kBytes, seed);
    CU(cuCtxSynchronize());
  }
  void check(uint64_t seed) const {
    words->check(at, kBytes, seed);
    words->write(at, kBytes, seed + 1000);
    words->check(at, kBytes, seed + 1000);
  }
};

int work(void* argument) {
  uint64_t seed = reinterpret_cast<uint64_t>(argument);
  Device device(seed);
  child_wait(1);
  device.check(seed);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  target_init(argc, argv);
  driver_load();
  pid_t children[3];
  for (uint64_t i = 0; i < 3; ++i) children[i] = start_child(work, reinterpret_cast<void*>(i + 1));
  Device device(77);
  target_ready();
  target_wait(nullptr);
  release(1);
  for (pid_t child : children) expect_exit(child, 0);
  device.check(77);
  target_pass();
}
