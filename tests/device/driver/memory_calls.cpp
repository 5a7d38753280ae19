// Calls: allocations, page-locked host memory, what a pointer is.
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device/driver/state.h"

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  int gpu = gpu_of[context->device];
  std::lock_guard guard(lock());
  uint64_t used = ledger_used(gpu);
  *total = settings().capacity[gpu];
  *free = used < *total ? *total - used : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult bad = forbidden_in_capture()) return bad;
  return allocate(context, bytesize, Kind::kPlain, nullptr, dptr);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pitch, size_t width, size_t height, unsigned element_size) {
  CKPT_STANDIN_ENTER();
  if (pitch == nullptr || width == 0 || height == 0 || (element_size != 4 && element_size != 8 && element_size != 16))
    return CUDA_ERROR_INVALID_VALUE;
  *pitch = (width + 511) / 512 * 512;
  return cuMemAlloc_v2(dptr, *pitch * height);
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  CKPT_STANDIN_ENTER();
  if (dptr == 0) return CUDA_SUCCESS;
  if (CUresult bad = forbidden_in_capture()) return bad;
  Context* context = nullptr;
  {
    std::lock_guard guard(lock());
    auto found = memory().allocations.find(dptr);
    if (found == memory().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    context = found->second.context;
  }
  wait_for_all(context);
  return release(dptr);
}

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = allocate(context, std::max(bytesize, kSmall), Kind::kManaged, nullptr, dptr);
  if (result != CUDA_SUCCESS) return result;
  // The host reaches it at the same address, too.
  std::lock_guard guard(lock());
  auto& mapping = memory().maps.find(*dptr)->second;
  memory().managed = true;
  void* at = reinterpret_cast<void*>(*dptr);
  void* made = ::mmap(at, mapping.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, mapping.physical->fd,
                      static_cast<off_t>(mapping.physical->offset));
  return made == at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr dptr) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  uint64_t start = 0;
  size_t length = 0;
  if (auto* found = allocation_at(dptr)) {
    start = found->first;
    length = found->second.size;
  } else {
    auto it = memory().maps.upper_bound(dptr);
    if (it == memory().maps.begin() || dptr - std::prev(it)->first >= std::prev(it)->second.size)
      return CUDA_ERROR_NOT_FOUND;
    start = std::prev(it)->first;
    length = std::prev(it)->second.size;
  }
  if (base != nullptr) *base = start;
  if (size != nullptr) *size = length;
  return CUDA_SUCCESS;
}

// --- Host memory

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned flags) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (pp == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  void* made = ::mmap(nullptr, bytesize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard guard(lock());
  memory().host[reinterpret_cast<uint64_t>(made)] = HostRange{bytesize, flags, false, context};
  *pp = made;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }

CUresult cuMemFreeHost(void* p) {
  CKPT_STANDIN_ENTER();
  Context* context;
  size_t size;
  {
    std::lock_guard guard(lock());
    auto found = memory().host.find(reinterpret_cast<uint64_t>(p));
    if (found == memory().host.end() || found->second.registered) return CUDA_ERROR_INVALID_VALUE;
    context = found->second.context;
    size = found->second.size;
  }
  wait_for_all(context);
  std::lock_guard guard(lock());
  memory().host.erase(reinterpret_cast<uint64_t>(p));
  ::munmap(p, size);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned flags) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (p == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  if (host_range_at(p) != nullptr) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  memory().host[reinterpret_cast<uint64_t>(p)] = HostRange{bytesize, flags, true, context};
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* p) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  auto found = memory().host.find(reinterpret_cast<uint64_t>(p));
  if (found == memory().host.end() || !found->second.registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  memory().host.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  if (pdptr == nullptr || host_range_at(p) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pdptr = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned* flags, void* p) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  auto* found = host_range_at(p);
  if (flags == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = found->second.flags;
  return CUDA_SUCCESS;
}

// --- What a pointer is

namespace {

template <class T>
CUresult give(void* data, T value) {
  ::memcpy(data, &value, sizeof(value));
  return CUDA_SUCCESS;
}

/// CUDA_ERROR_INVALID_VALUE: a pointer that the driver does not know.
CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  auto* host = is_device(ptr) ? nullptr : host_range_at(reinterpret_cast<void*>(ptr));
  auto* allocation = host == nullptr ? allocation_at(ptr) : nullptr;
  const std::pair<const uint64_t, Mapping>* mapped = nullptr;
  auto it = memory().maps.upper_bound(ptr);
  if (it != memory().maps.begin() && ptr - std::prev(it)->first < std::prev(it)->second.size) mapped = &*std::prev(it);
  if (host == nullptr && mapped == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(data, host != nullptr         ? host->second.context
                        : allocation != nullptr ? allocation->second.context
                                                : current_context());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(data, static_cast<unsigned>(host != nullptr ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return give(data, ptr);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (host == nullptr && (allocation == nullptr || allocation->second.kind != Kind::kManaged))
        return CUDA_ERROR_INVALID_VALUE;
      return give(data, ptr);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return give(data, 0u);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return give(data, allocation != nullptr ? allocation->second.id : uint64_t{0});
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(data, static_cast<unsigned>(allocation != nullptr && allocation->second.kind == Kind::kManaged));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(data, host != nullptr ? host->second.context->device : mapped->second.physical->device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(data, static_cast<unsigned>(allocation != nullptr && allocation->second.kind == Kind::kPlain));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(data, host != nullptr ? host->first : allocation ? allocation->first : mapped->first);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(data, host != nullptr ? host->second.size
                        : allocation    ? allocation->second.size
                                        : mapped->second.size);
    case CU_POINTER_ATTRIBUTE_MAPPED: return give(data, 1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give(data,
                  static_cast<uint64_t>(mapped == nullptr ? 0 : mapped->second.physical->prop.requestedHandleTypes));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return give(data, allocation != nullptr ? allocation->second.pool : nullptr);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  return data == nullptr ? CUDA_ERROR_INVALID_VALUE : pointer_attribute(data, attribute, ptr);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr ptr) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  for (unsigned i = 0; i < count; ++i) {
    if (pointer_attribute(data[i], attributes[i], ptr) == CUDA_SUCCESS) continue;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
      give(data[i], -2);
    else
      give(data[i], 0u);  // as the driver: unknown pointers are no error here
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  return value != nullptr && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && allocation_at(ptr)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

// --- Between processes: given out and taken as names of memfds; a process that ever did so cannot be checkpointed.

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr dptr) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  auto* allocation = allocation_at(dptr);
  if (handle == nullptr || allocation == nullptr || allocation->second.kind != Kind::kPlain)
    return CUDA_ERROR_INVALID_VALUE;
  memory().ipc = true;
  ::memset(handle, 0, sizeof(*handle));
  uint64_t start = allocation->second.block != 0 ? allocation->second.block : allocation->first;
  const Mapping& mapping = memory().maps.find(start)->second;
  int64_t fields[5] = {::getpid(), mapping.physical->fd, static_cast<int64_t>(mapping.physical->offset),
                       static_cast<int64_t>(mapping.size), static_cast<int64_t>(allocation->first - start)};
  ::memcpy(handle, fields, sizeof(fields));
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  int64_t fields[5];
  ::memcpy(fields, &handle, sizeof(fields));
  if (pdptr == nullptr || fields[0] == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  char path[64];
  ::snprintf(path, sizeof(path), "/proc/%d/fd/%d", static_cast<int>(fields[0]), static_cast<int>(fields[1]));
  int fd = ::open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  memory().ipc = true;
  Physical made;
  made.device = context->device;
  made.size = static_cast<size_t>(fields[3]);
  made.fd = fd;
  made.offset = static_cast<uint64_t>(fields[2]);
  made.own_fd = made.imported = true;
  uint64_t address = arena_take(made.size, kGranule);
  if (address == 0) return ::close(fd), CUDA_ERROR_OUT_OF_MEMORY;
  physical_map(address, &memory().physical.emplace_back(made), 0, made.size, PROT_READ | PROT_WRITE);
  *pdptr = address + static_cast<uint64_t>(fields[4]);
  memory().allocations[*pdptr] =
      Allocation{made.size - static_cast<size_t>(fields[4]), Kind::kIpc, context, nullptr, 0, 0};
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  auto found = memory().allocations.find(dptr);
  if (found == memory().allocations.end() || found->second.kind != Kind::kIpc) return CUDA_ERROR_INVALID_VALUE;
  memory().allocations.erase(found);
  auto mapped = std::prev(memory().maps.upper_bound(dptr));
  Physical* physical = mapped->second.physical;
  size_t size = mapped->second.size;
  uint64_t address = mapped->first;
  shadow_unmap(address, size);
  memory().maps.erase(mapped);
  physical_drop(physical);
  arena_give(address, size);
  return CUDA_SUCCESS;
}

}  // namespace ckpt::cuda::api
