// Every call that is declared and not defined elsewhere: whoever makes it is told which it was.
#include <stdio.h>
#include <stdlib.h>

#include "plugins/cuda/driver_api.h"

namespace ckpt::cuda::api {

[[noreturn]] static void absent(const char* name) {
  ::fprintf(stderr, "stand-in: %s is not there\n", name);
  ::abort();
}

#define CKPT_CUDA(name, parameters) extern "C" __attribute__((weak, visibility("default"))) CUresult name parameters;
#include "plugins/cuda/driver_functions.inc"

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define CKPT_CUDA(name, parameters) \
  CUresult name parameters { absent(#name); }
#include "plugins/cuda/driver_functions.inc"

}  // namespace ckpt::cuda::api
