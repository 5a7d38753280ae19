// How the calls are found: by name, by version, and the second set whose stream 0 is the thread's own.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <type_traits>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

/// A call as its name with _ptsz or _ptds does it.
template <auto Function>
struct PerThread;
template <class... Arguments, CUresult (*Function)(Arguments...)>
struct PerThread<Function> {
  static CUresult call(Arguments... arguments) {
    bool before = per_thread_default;
    per_thread_default = true;
    CUresult result = Function(arguments...);
    per_thread_default = before;
    return result;
  }
};

struct Name {
  const char* name;
  CUresult code;
  const char* text;
};
#define ERROR(name, text) {#name, name, text}
constexpr Name kErrors[] = {
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
    ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    ERROR(CUDA_ERROR_TIMEOUT, "the operation timed out"),
    ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

/// Names that came after their function's first, and those that came late, with the version that has them.
constexpr std::pair<const char*, int> kSince[] = {
    {"cuCtxCreate_v4", 12050},           {"cuEventElapsedTime_v2", 12080}, {"cuStreamGetCaptureInfo_v3", 12030},
    {"cuGraphAddDependencies_v2", 12030}, {"cuFuncGetParamInfo", 12040},   {"cuKernelGetParamInfo", 12040},
    {"cuStreamGetDevice", 12080},         {"cuFuncGetName", 12030},       {"cuGetProcAddress_v2", 12000},
};

int since(const std::string& name) {
  if (name.starts_with("cuCheckpointProcess")) return 12080;
  for (auto [late, version] : kSince)
    if (name == late) return version;
  return 0;
}

struct Entry {
  const char* name;
  void* plain;
  void* own;  ///< null: there is no second one
};

}  // namespace

}  // namespace ckpt::standin

/// As it was before it told why a name is not found.
CKPT_STANDIN_API ckpt::cuda::api::CUresult cuGetProcAddress(const char* symbol, void** out, int version,
                                                            uint64_t flags) {
  return ckpt::cuda::api::cuGetProcAddress_v2(symbol, out, version, flags, nullptr);
}

namespace ckpt::standin {

// Assembler reaches these by name.
#define CKPT_CUDA(name, parameters)
#define CKPT_CUDA_OLD(name, parameters)
#define SECOND(name, suffix)                                                                                       \
  extern "C" __attribute__((visibility("hidden"))) void* ckpt_standin_own_##name;                                  \
  __attribute__((used)) void* ckpt_standin_own_##name = reinterpret_cast<void*>(&PerThread<&name>::call);          \
  asm(".globl " #name suffix "\n.type " #name suffix ", @function\n" #name suffix ": jmp *ckpt_standin_own_" #name \
      "(%rip)\n.size " #name suffix ", . - " #name suffix "\n");
#define CKPT_CUDA_PTSZ(name, parameters) SECOND(name, "_ptsz")
#define CKPT_CUDA_PTDS(name, parameters) SECOND(name, "_ptds")
#include "plugins/cuda/driver_functions.inc"

namespace {

const Entry kEntries[] = {
    {"cuGetProcAddress", reinterpret_cast<void*>(&::cuGetProcAddress), nullptr},
#define CKPT_CUDA(name, parameters) {#name, reinterpret_cast<void*>(&name), nullptr},
#define CKPT_CUDA_PTSZ(name, parameters) {#name, reinterpret_cast<void*>(&name), ckpt_standin_own_##name},
#define CKPT_CUDA_PTDS CKPT_CUDA_PTSZ
#include "plugins/cuda/driver_functions.inc"
};

/// The newest form of a function that a program of this version may have.
void* find(const std::string& name, int version, bool own, bool& too_new) {
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    std::string whole = name + suffix;
    for (const Entry& entry : kEntries) {
      if (whole != entry.name) continue;
      if (since(whole) <= std::min(version, settings().version))
        return own && entry.own != nullptr ? entry.own : entry.plain;
      too_new = true;
    }
  }
  return nullptr;
}

/// One that is there to say that it is not.
void* find_absent(const std::string& name, bool own) {
  for (const char* suffix : {"_v3", "_v2", ""}) {
    for (const char* form : {"_ptsz", "_ptds", ""}) {
      void* found = *form == 0 || own ? exported((name + suffix + form).c_str()) : nullptr;
      if (found != nullptr) return found;
    }
  }
  return nullptr;
}

}  // namespace

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuGetErrorName(CUresult error, const char** out) {
  for (const Name& each : kErrors)
    if (each.code == error) return *out = each.name, CUDA_SUCCESS;
  return *out = nullptr, CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** out) {
  for (const Name& each : kErrors)
    if (each.code == error) return *out = each.text, CUDA_SUCCESS;
  return *out = nullptr, CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** out, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool too_new = false, own = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  *out = find(symbol, version, own, too_new);
  if (*out == nullptr && !too_new) *out = find_absent(symbol, own);
  if (status != nullptr)
    *status = *out != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : too_new       ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace ckpt::cuda::api
