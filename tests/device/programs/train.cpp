// A training loop that goes on all the time: weights and momenta live on the device. Each step's loss is printed and
// kept, and at the end the whole run is done again from its beginning: every loss and every weight must be the same to
// the bit.
//
// Argument: elements (262144).
#include <atomic>
#include <thread>

#include "tests/device/programs/program.h"

namespace {

constexpr int kMostSteps = 200000;

struct Run {
  CUdeviceptr weights = 0, momenta = 0, sum = 0;
  uint64_t count = 0;
  CUstream stream = nullptr;
  CUfunction train = nullptr, loss = nullptr;

  Run(CUmodule module, uint64_t elements)
      : count(elements), train(kernel(module, "train")), loss(kernel(module, "loss")) {
    CU(cuMemAlloc_v2(&weights, count * sizeof(float)));
    CU(cuMemAlloc_v2(&momenta, count * sizeof(float)));
    CU(cuMemAlloc_v2(&sum, sizeof(float)));
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    launch(kernel(module, "begin"), stream, {&weights, &momenta, &count});
  }
  float step(uint32_t number) {
    float out;
    launch(train, stream, {&weights, &momenta, &count, &number});
    launch(loss, stream, {&weights, &count, &sum});
    CU(cuMemcpyDtoHAsync_v2(&out, sum, sizeof out, stream));
    CU(cuStreamSynchronize(stream));
    return out;
  }
  std::vector<float> read() const {
    std::vector<float> out(count);
    CU(cuMemcpyDtoH_v2(out.data(), weights, count * sizeof(float)));
    return out;
  }
};

std::atomic<bool> stop{false};
std::vector<float> losses;

void go_on(Run* run, CUcontext context) {
  CU(cuCtxSetCurrent(context));
  losses.reserve(kMostSteps);
  while (!stop && losses.size() < kMostSteps) {
    losses.push_back(run->step(static_cast<uint32_t>(losses.size())));
    if (losses.size() % 64 == 0)
      printf("step %zu loss %a\n", losses.size(), static_cast<double>(losses.back())), fflush(stdout);
    sleep_ms(2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  target_init(argc, argv);
  CUcontext context = driver_start();
  CUmodule module = kernels_load();
  uint64_t elements = argc > 2 ? strtoull(argv[2], nullptr, 0) : 262144;
  Run run(module, elements);
  losses.reserve(kMostSteps);
  for (uint32_t i = 0; i < 3; ++i) losses.push_back(run.step(i));
  std::thread loop(go_on, &run, context);
  target_ready();
  target_wait(nullptr);
  size_t before = losses.size();
  for (int i = 0; i < 2000 && losses.size() < before + 3; ++i) sleep_ms(5);  // it does go on
  stop = true;
  loop.join();
  CHECK(losses.size() >= before + 3);
  Run again(module, elements);
  for (size_t i = 0; i < losses.size(); ++i) {
    float loss = again.step(static_cast<uint32_t>(i));
    if (memcmp(&loss, &losses[i], sizeof loss) != 0)
      target_fail("step %zu of %zu: loss %a, not %a", i, losses.size(), static_cast<double>(losses[i]),
                  static_cast<double>(loss));
  }
  std::vector<float> one = run.read(), other = again.read();
  CHECK(memcmp(one.data(), other.data(), elements * sizeof(float)) == 0);
  target_pass();
}
