/* A driver that does nothing: what is measured is the way to it. */
#include <stddef.h>

#define CALL(name) __attribute__((visibility("default"))) int name(void) { return 0; }
CALL(cuInit)
CALL(cuLaunchKernel)
CALL(cuMemcpyHtoDAsync_v2)
CALL(cuStreamQuery)
CALL(cuDriverGetVersion)
