// Memory on two GPUs, each in its own context, and copies between them.
#include "tests/device/programs/program.h"

int main(int argc, char** argv) {
  target_init(argc, argv);
  driver_load();
  int count = 0;
  CU_OR_SKIP(cuInit(0));
  CU_OR_SKIP(cuDeviceGetCount(&count));
  if (count < 2) target_skip("%d GPU", count);
  const size_t bytes = 3 << 20;
  CUdeviceptr at[2], mirror;
  std::vector<Words> words;
  CUcontext context[2];
  for (int i = 0; i < 2; ++i) {
    context[i] = driver_start(i);
    words.emplace_back(kernels_load());
    CU(cuMemAlloc_v2(&at[i], bytes));
    words[i].write(at[i], bytes, 100 + i);
    CU(cuCtxSynchronize());
  }
  CU(cuMemAlloc_v2(&mirror, bytes));
  CU(cuMemcpyPeer(mirror, context[1], at[0], context[0], bytes));
  target_ready();
  target_wait(nullptr);
  for (int i = 0; i < 2; ++i) {
    CU(cuCtxSetCurrent(context[i]));
    words[i].check(at[i], bytes, 100 + i);
  }
  words[1].check(mirror, bytes, 100);
  CU(cuMemcpyPeer(at[0], context[0], at[1], context[1], bytes));
  CU(cuCtxSetCurrent(context[0]));
  words[0].check(at[0], bytes, 101);
  target_pass();
}
