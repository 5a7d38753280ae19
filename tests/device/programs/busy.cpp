// A kernel that runs until the program is told to step: meanwhile the process cannot be locked.
#include "tests/device/programs/program.h"

static volatile uint32_t* flag;

static void end_kernel(int) {
  *flag = 1;
  CU(cuCtxSynchronize());
}

int main(int argc, char** argv) {
  target_init(argc, argv);
  driver_start();
  CUmodule module = kernels_load();
  void* host = nullptr;
  CU(cuMemHostAlloc(&host, 4096, kMemHostAllocDeviceMap));
  flag = static_cast<volatile uint32_t*>(host);
  CUdeviceptr address;
  CU(cuMemHostGetDevicePointer_v2(&address, host, 0));
  CUstream stream;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  *flag = 0;
  launch(kernel(module, "spin"), stream, {&address}, 1, 1);
  target_ready();
  target_wait(end_kernel);
  target_pass();
}
