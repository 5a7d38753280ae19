// Calls: pools, and memory that comes and goes in the order of a stream.
#include <string.h>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

struct Pool {
  int device = 0;
  std::atomic<uint64_t> used{0}, high{0};
  uint64_t threshold = 0;
  bool standard = false;
};

namespace {

struct Pools {
  std::list<Pool> all;
  Pool* standard[kMaxGpus] = {};
  Pool* current[kMaxGpus] = {};
};

Pools& pools() {
  static Pools& one = *[] {
    auto* made = new Pools;
    for (int device = 0; device < kMaxGpus; ++device) {
      Pool& pool = made->all.emplace_back();
      pool.device = device;
      pool.standard = true;
      made->standard[device] = made->current[device] = &pool;
    }
    return made;
  }();
  return one;
}

Pool* pool_of(CUmemoryPool handle) {
  for (Pool& each : pools().all)
    if (reinterpret_cast<CUmemoryPool>(&each) == handle) return &each;
  return nullptr;
}

CUresult take(CUdeviceptr* out, size_t size, Pool* pool, CUstream handle) {
  auto stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) return stream->capture->broken = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CUresult result = allocate(stream->context, size, Kind::kAsync, pool, out);
  if (result != CUDA_SUCCESS) return result;
  uint64_t used = pool->used.fetch_add(size) + size;
  if (used > pool->high) pool->high = used;
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (pool == nullptr || dev < 0 || dev >= settings().gpus) return CUDA_ERROR_INVALID_VALUE;
  *pool = reinterpret_cast<CUmemoryPool>(pools().standard[dev]);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  CKPT_STANDIN_ENTER();
  if (pool == nullptr || dev < 0 || dev >= settings().gpus) return CUDA_ERROR_INVALID_VALUE;
  *pool = reinterpret_cast<CUmemoryPool>(pools().current[dev]);
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool handle) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Pool* pool = pool_of(handle);
  if (pool == nullptr || dev < 0 || dev >= settings().gpus || pool->device != dev) return CUDA_ERROR_INVALID_VALUE;
  pools().current[dev] = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* props) {
  CKPT_STANDIN_ENTER();
  if (out == nullptr || props == nullptr || props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (props->location.id < 0 || props->location.id >= settings().gpus) return CUDA_ERROR_INVALID_DEVICE;
  if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard guard(lock());
  Pool& made = pools().all.emplace_back();
  made.device = props->location.id;
  *out = reinterpret_cast<CUmemoryPool>(&made);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Pool* pool = pool_of(handle);
  if (pool == nullptr || pool->standard) return CUDA_ERROR_INVALID_VALUE;
  for (Pool*& current : pools().current)
    if (current == pool) current = pools().standard[pool->device];
  if (pool->used == 0) pools().all.remove_if([&](const Pool& each) { return &each == pool; });
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Pool* pool = pool_of(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) ::memcpy(&pool->threshold, value, sizeof(uint64_t));
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->high = pool->used.load();
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Pool* pool = pool_of(handle);
  if (pool == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  uint64_t wide = 0;
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: wide = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: wide = pool->used; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: wide = pool->high; break;
    default: {
      int one = 1;
      ::memcpy(value, &one, sizeof(one));
      return CUDA_SUCCESS;
    }
  }
  ::memcpy(value, &wide, sizeof(wide));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  return pool_of(handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc*, size_t) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  return pool_of(handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Pool* pool = pool_of(handle);
  if (pool == nullptr || flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = location->id == pool->device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t size, CUstream stream) {
  CKPT_STANDIN_ENTER();
  auto on = stream_of(stream);
  if (on == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return take(dptr, size, pools().current[on->context->device], stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t size, CUmemoryPool handle, CUstream stream) {
  CKPT_STANDIN_ENTER();
  Pool* pool;
  {
    std::lock_guard guard(lock());
    pool = pool_of(handle);
  }
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : take(dptr, size, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream handle) {
  CKPT_STANDIN_ENTER();
  auto stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard guard(lock());
  auto found = memory().allocations.find(dptr);
  if (found == memory().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  return submit(stream, CU_GRAPH_NODE_TYPE_EMPTY, [dptr, pool = found->second.pool, size = found->second.size] {
    if (release(dptr) == CUDA_SUCCESS && pool != nullptr) pool->used.fetch_sub(size);
  });
}

}  // namespace ckpt::cuda::api
