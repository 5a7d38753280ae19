// The CUDA runtime, loaded from the file that CKPT_TOOLKIT_FILE names: no header of it is needed, and the program
// builds without it.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct Dim3 {
  unsigned x, y, z;
};
using RuntimeStream = struct CUstream_st*;
using RuntimeEvent = struct CUevent_st*;
enum RuntimeCopy { kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3 };

#define CKPT_RUNTIME_FUNCTIONS(F)                                                                                     \
  F(int, cudaGetDeviceCount, (int* count))                                                                            \
  F(int, cudaSetDevice, (int device))                                                                                 \
  F(int, cudaMalloc, (void** at, size_t bytes))                                                                       \
  F(int, cudaFree, (void* at))                                                                                        \
  F(int, cudaMallocHost, (void** at, size_t bytes))                                                                   \
  F(int, cudaMemcpy, (void* to, const void* from, size_t bytes, int kind))                                            \
  F(int, cudaMemcpyAsync, (void* to, const void* from, size_t bytes, int kind, RuntimeStream stream))                 \
  F(int, cudaMemcpyToSymbol, (const void* symbol, const void* from, size_t bytes, size_t offset, int kind))           \
  F(int, cudaMemcpyFromSymbol, (void* to, const void* symbol, size_t bytes, size_t offset, int kind))                 \
  F(int, cudaMemset, (void* at, int value, size_t bytes))                                                             \
  F(int, cudaStreamCreate, (RuntimeStream * out))                                                                     \
  F(int, cudaStreamSynchronize, (RuntimeStream stream))                                                               \
  F(int, cudaStreamWaitEvent, (RuntimeStream stream, RuntimeEvent event, unsigned flags))                             \
  F(int, cudaEventCreate, (RuntimeEvent * out))                                                                       \
  F(int, cudaEventRecord, (RuntimeEvent event, RuntimeStream stream))                                                 \
  F(int, cudaEventSynchronize, (RuntimeEvent event))                                                                  \
  F(int, cudaDeviceSynchronize, ())                                                                                   \
  F(int, cudaLaunchKernel, (const void* stub, Dim3 grid, Dim3 block, void** arguments, size_t shared, RuntimeStream)) \
  F(unsigned, __cudaPushCallConfiguration, (Dim3 grid, Dim3 block, size_t shared, RuntimeStream stream))              \
  F(int, __cudaPopCallConfiguration, (Dim3 * grid, Dim3* block, size_t* shared, void* stream))                        \
  F(void**, __cudaRegisterFatBinary, (const void* wrapper))                                                           \
  F(void, __cudaRegisterFatBinaryEnd, (void** handle))                                                                \
  F(void, __cudaUnregisterFatBinary, (void** handle))                                                                 \
  F(void, __cudaRegisterFunction, (void** handle, const char* stub, char* device_name, const char* name, int threads, \
                                   void* tid, void* bid, void* block, void* grid, int* warp))                         \
  F(void, __cudaRegisterVar, (void** handle, char* host, char* device_name, const char* name, int external,           \
                              size_t bytes, int constant, int global))

struct RuntimeTable {
#define CKPT_RUNTIME_FUNCTION(result, name, parameters) result(*name) parameters;
  CKPT_RUNTIME_FUNCTIONS(CKPT_RUNTIME_FUNCTION)
#undef CKPT_RUNTIME_FUNCTION
};
