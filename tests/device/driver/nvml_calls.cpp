// The part of the management library (nvml.h) that ckpt asks: in the same file as the driver, here.
#include <stdio.h>
#include <string.h>

#include "tests/device/driver/state.h"

using namespace ckpt::standin;

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 2, kNotFound = 6, kInsufficientSize = 7, kNoLibrary = 12;

struct Amount {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

/// "GPU-" and 32 hexadecimal digits in five groups.
bool is_named(int gpu, const char* text) {
  const CUuuid uuid = uuid_of(gpu);
  char digits[2 * sizeof(uuid.bytes) + 1], *to = digits;
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i)
    to += ::snprintf(to, 3, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  const char* at = digits;
  for (text += ::strncmp(text, "GPU-", 4) == 0 ? 4 : 0; *text != 0; ++text)
    if (*text != '-' && *text != *at++) return false;
  return *at == 0;
}

int gpu_of_handle(void* handle) { return static_cast<int>(reinterpret_cast<uintptr_t>(handle)) - 1; }

}  // namespace

CKPT_STANDIN_API int nvmlInit_v2() { return settings().nvml ? kSuccess : kNoLibrary; }

CKPT_STANDIN_API int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  for (int gpu = 0; gpu < settings().gpus; ++gpu) {
    if (!is_named(gpu, uuid)) continue;
    *device = reinterpret_cast<void*>(static_cast<uintptr_t>(gpu + 1));
    return kSuccess;
  }
  return kNotFound;
}

CKPT_STANDIN_API int nvmlDeviceGetMemoryInfo(void* device, Amount* out) {
  const int gpu = gpu_of_handle(device);
  if (gpu < 0 || gpu >= settings().gpus) return kInvalidArgument;
  out->total = settings().capacity[gpu];
  out->used = ledger_used(gpu);
  out->free = out->total - std::min(out->total, out->used);
  return kSuccess;
}

CKPT_STANDIN_API int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessInfo* out) {
  constexpr int kMost = 128;
  int pids[kMost];
  uint64_t bytes[kMost];
  const int gpu = gpu_of_handle(device);
  if (gpu < 0 || gpu >= settings().gpus) return kInvalidArgument;
  const unsigned found = static_cast<unsigned>(ledger_processes(gpu, pids, bytes, kMost)), room = *count;
  *count = found;
  if (found > room) return kInsufficientSize;
  for (unsigned i = 0; i < found; ++i) out[i] = {static_cast<unsigned>(pids[i]), bytes[i], ~0u, ~0u};
  return kSuccess;
}
