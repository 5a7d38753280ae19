/* What a test program shares with the stand-in driver: how its kernels are written, in place of device code.
 *
 * A module is text: the line CKPTEMU1, then one line for each thing in it, in any order, until the end of the text:
 *
 *   kernel NAME SIZE[,SIZE..]     a kernel and the sizes of its parameters (- for none)
 *   global NAME SIZE              a variable of the module, in device memory, zero at first
 *
 * The kernel NAME is the function emu_NAME of the program, a StandinKernel, found by dlsym: link with -rdynamic.
 * It does the work of the whole grid, on the thread of its stream.
 */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

typedef struct StandinLaunch {
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  void** params;                                    /* as cuLaunchKernel takes them; the copies are the launch's own */
  void* (*translate)(unsigned long long device_address); /* where the host reaches it; host memory is itself */
} StandinLaunch;

typedef void (*StandinKernel)(const StandinLaunch* launch);

#ifdef __cplusplus
}
#endif
