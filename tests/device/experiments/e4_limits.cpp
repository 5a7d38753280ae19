// E4: what a program may learn and what it costs: the parameters of a kernel, the price of a launch (run it with and
// without ckpt's interposer preloaded), and whether a store to read-only memory is caught. The last spoils the context:
// it comes last.
//
//   e4 [launches = 200000] [NAME of the case = plain]
#include "tests/device/experiments/experiment.h"

int main(int argc, char** argv) {
  experiment_begin(argc, argv);
  const int launches = static_cast<int>(argument(argc, argv, 1, 200000));
  const std::string name = argc > 2 ? argv[2] : "plain";
  driver_start();
  CUmodule module = kernels_load();
  CUfunction train = kernel(module, "train"), add = kernel(module, "add");
  if (cu.cuFuncGetParamInfo != nullptr) {
    size_t known = 0, offset = 0, size = 0;
    while (cu.cuFuncGetParamInfo(train, known, &offset, &size) == CUDA_SUCCESS) ++known;
    report("E4", "parameters that cuFuncGetParamInfo lists (of 4)", static_cast<double>(known), "");
    report("E4", "end of the last (28)", static_cast<double>(offset + size), "bytes");
  }

  CUdeviceptr counter = 0;
  CU(cuMemAlloc_v2(&counter, 8));
  CU(cuMemsetD8_v2(counter, 0, 8));
  uint64_t one = 1, total = 0;
  for (int round = 0; round < 2; ++round) {
    const double began = seconds();
    for (int i = 0; i < launches; ++i) launch(add, nullptr, {&counter, &one}, 1, 32);
    const double submitted = seconds() - began;
    CU(cuCtxSynchronize());
    if (round == 1) report("E4", "a launch, " + name, submitted / launches * 1e9, "ns");
  }
  CU(cuMemcpyDtoH_v2(&total, counter, 8));
  CHECK_EQUAL(total, 2 * launches);
  double began = seconds();
  CUcontext context;
  for (int i = 0; i < launches; ++i) CU(cuCtxGetCurrent(&context));
  report("E4", "the cheapest call, " + name, (seconds() - began) / launches * 1e9, "ns");

  if (getenv("CKPT_STANDIN_DIR") != nullptr) return 0;  // there a store to it ends the process
  Mapped memory = map_new(2 << 20, false);
  launch(add, nullptr, {&memory.at, &one}, 1, 32);
  CU(cuCtxSynchronize());
  const CUmemAccessDesc reading{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READ};
  report("E4", "read-only access, CUresult", cu.cuMemSetAccess(memory.at, memory.size, &reading, 1), "");
  launch(add, nullptr, {&memory.at, &one}, 1, 32);
  report("E4", "a store to it, CUresult", cu.cuCtxSynchronize(), "");
  report("E4", "the next allocation, CUresult (not 0: the context is lost)", cu.cuMemAlloc_v2(&counter, 16), "");
  _exit(0);
}
