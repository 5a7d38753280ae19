// Calls: start, devices, contexts.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

struct Contexts {
  std::list<Context> all;
  Context* primary[kMaxGpus] = {};
  unsigned primary_flags[kMaxGpus] = {};
};
Contexts& contexts() {
  static Contexts& one = *new Contexts;
  return one;
}
thread_local std::vector<Context*> stack;

/// In a forked child nothing of the driver works, as with the real one; its memory is not there, and its descriptors
/// are let go.
void in_child() {
  ckpt_standin_note.active = 0;
  if (initialised.exchange(false)) {
    const Note& note = ckpt_standin_note;
    for (int fd : {note.request_read, note.request_write, note.reply_read, note.reply_write}) ::close(fd);
    for (Physical& each : memory().physical)
      if (each.own_fd) ::close(each.fd);
    for (int fd : memory().pool_fd)
      if (fd >= 0) ::close(fd);
  }
}
std::atomic<bool> forked_after_init{false};

Context* make(int device, unsigned flags, bool primary) {
  static uint64_t id = 0;
  Context& made = contexts().all.emplace_back();
  made.device = device;
  made.flags = flags;
  made.primary = primary;
  made.id = ++id;
  made.standard = stream_make(&made, 0, 0);
  return &made;
}

/// Without the lock: what is waited for may need it.
void end_streams(Context* context) {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    std::lock_guard guard(lock());
    streams.assign(context->streams.begin(), context->streams.end());
  }
  for (const auto& stream : streams) stream_end(stream);
}

void destroy(Context* context) {
  storage_end(context);
  end_streams(context);
  std::lock_guard guard(lock());
  std::vector<CUdeviceptr> owned;
  for (auto& [address, allocation] : memory().allocations)
    if (allocation.context == context && allocation.kind != Kind::kIpc) owned.push_back(address);
  for (CUdeviceptr address : owned) release(address);
  for (Context*& each : contexts().primary)
    if (each == context) each = nullptr;
  contexts().all.remove_if([&](const Context& each) { return &each == context; });
}

bool known_device(CUdevice device) { return device >= 0 && device < settings().gpus; }

}  // namespace

Context* current_context() {
  if (stack.empty()) return nullptr;
  std::lock_guard guard(lock());
  return context_of(reinterpret_cast<CUcontext>(stack.back()));
}

Context* context_of(CUcontext handle) {
  for (Context& each : contexts().all)
    if (reinterpret_cast<CUcontext>(&each) == handle) return &each;
  return nullptr;
}

std::vector<Context*> contexts_on(int device) {
  std::vector<Context*> found;
  for (Context& each : contexts().all)
    if (each.device == device) found.push_back(&each);
  return found;
}

bool device_in_use(int device) {
  for (Context& each : contexts().all)
    if (each.device == device) return true;
  for (Physical& each : memory().physical)
    if (each.device == device) return true;
  return false;
}

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuInit(unsigned flags) {
  ApiCall call(__func__, false);
  if (call.refused() != CUDA_SUCCESS) return call.refused();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  if (initialised.load()) return CUDA_SUCCESS;
  if (forked_after_init.load()) return CUDA_ERROR_NOT_INITIALIZED;
  if (settings().gpus == 0) return CUDA_ERROR_NO_DEVICE;
  ::pthread_atfork(nullptr, nullptr, [] {
    if (initialised.load()) forked_after_init = true;
    in_child();
  });
  if (!nodes_take() || !restore_thread_start()) return CUDA_ERROR_OPERATING_SYSTEM;
  initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = settings().version;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  CKPT_STANDIN_ENTER();
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = settings().gpus;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  CKPT_STANDIN_ENTER();
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  ::snprintf(name, static_cast<size_t>(len), "Stand-in GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = uuid_of(gpu_of[dev]);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = settings().capacity[gpu_of[dev]];
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attribute, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *pi = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *pi = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *pi = 0x7fffffff; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *pi = 0xffff; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *pi = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *pi = 32; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *pi = 4; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *pi = 9; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *pi = gpu_of[dev] + 1; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *pi = 2; break;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *pi = 1; break;
    default: *pi = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int len, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (id == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  ::snprintf(id, static_cast<size_t>(len), "0000:%02x:00.0", gpu_of[dev] + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* id) {
  CKPT_STANDIN_ENTER();
  unsigned bus = 0;
  if (dev == nullptr || id == nullptr || ::sscanf(id, "%*x:%x", &bus) != 1) return CUDA_ERROR_INVALID_VALUE;
  for (int each = 0; each < settings().gpus; ++each)
    if (gpu_of[each] + 1 == static_cast<int>(bus)) return *dev = each, CUDA_SUCCESS;
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice dev, CUdevice peer) {
  CKPT_STANDIN_ENTER();
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev) || !known_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = dev != peer;
  return CUDA_SUCCESS;
}

// --- Contexts

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard guard(lock());
  Context*& primary = contexts().primary[dev];
  if (primary == nullptr) primary = make(dev, contexts().primary_flags[dev], true);
  ++primary->references;
  *pctx = reinterpret_cast<CUcontext>(primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  Context* primary = contexts().primary[dev];
  if (primary == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (--primary->references == 0) destroy(primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (Context* primary = contexts().primary[dev]) destroy(primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags) {
  CKPT_STANDIN_ENTER();
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  contexts().primary_flags[dev] = flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned* flags, int* active) {
  CKPT_STANDIN_ENTER();
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = contexts().primary_flags[dev];
  *active = contexts().primary[dev] != nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned flags, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!known_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard guard(lock());
  Context* made = make(dev, flags, false);
  stack.push_back(made);
  *pctx = reinterpret_cast<CUcontext>(made);
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams*, unsigned flags, CUdevice dev) {
  return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  CKPT_STANDIN_ENTER();
  Context* context;
  {
    std::lock_guard guard(lock());
    context = context_of(ctx);
  }
  if (context == nullptr || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  destroy(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Context* context = context_of(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
  CKPT_STANDIN_ENTER();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx != nullptr) *pctx = reinterpret_cast<CUcontext>(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
  CKPT_STANDIN_ENTER();
  if (ctx == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  std::lock_guard guard(lock());
  Context* context = context_of(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) stack.push_back(nullptr);
  stack.back() = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  CKPT_STANDIN_ENTER();
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pctx = reinterpret_cast<CUcontext>(current_context());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned* flags) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* id) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Context* context = ctx == nullptr ? current_context() : context_of(ctx);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
  CKPT_STANDIN_ENTER();
  *version = static_cast<unsigned>(settings().version);
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult bad = forbidden_in_capture()) return bad;
  wait_for_all(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit, size_t) {
  CKPT_STANDIN_ENTER();
  return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  CKPT_STANDIN_ENTER();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *value = limit == CU_LIMIT_STACK_SIZE ? 1024 : size_t{8} << 20;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  CKPT_STANDIN_ENTER();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Context *context = current_context(), *other = context_of(peer);
  if (context == nullptr || other == nullptr || context == other) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return context->peers.insert(other).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Context *context = current_context(), *other = context_of(peer);
  if (context == nullptr || other == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return context->peers.erase(other) == 1 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // namespace ckpt::cuda::api
