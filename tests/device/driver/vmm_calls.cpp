// Calls: physical memory and address ranges apart.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/device/driver/state.h"

namespace ckpt::cuda::api {

using namespace ckpt::standin;

namespace {

/// Handles are addresses of `Physical`, told from anything else by looking.
Physical* physical_of(CUmemGenericAllocationHandle handle) {
  for (Physical& each : memory().physical)
    if (reinterpret_cast<CUmemGenericAllocationHandle>(&each) == handle) return &each;
  return nullptr;
}

bool granular(uint64_t value) { return value % kGranule == 0; }

/// Runs `act` on each mapping that makes up exactly [address, address + size); false: they do not.
template <class Act>
bool for_mappings(uint64_t address, size_t size, Act act) {
  std::vector<uint64_t> found;
  uint64_t at = address;
  while (at < address + size) {
    auto it = memory().maps.find(at);
    if (it == memory().maps.end()) return false;
    found.push_back(at);
    at += it->second.size;
  }
  if (at != address + size) return false;
  for (uint64_t each : found) act(each, memory().maps.find(each)->second);
  return true;
}

}  // namespace

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  CKPT_STANDIN_ENTER();
  if (ptr == nullptr || size == 0 || !granular(size) || flags != 0 || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  uint64_t at = arena_take(size, alignment, granular(addr) ? addr : 0);
  if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  memory().reservations[at] = size;
  *ptr = at;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  auto found = memory().reservations.find(ptr);
  if (found == memory().reservations.end() || found->second != size) return CUDA_ERROR_INVALID_VALUE;
  auto mapped = memory().maps.lower_bound(ptr);
  if (mapped != memory().maps.end() && mapped->first < ptr + size) return CUDA_ERROR_INVALID_VALUE;
  memory().reservations.erase(found);
  arena_give(ptr, size);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags) {
  CKPT_STANDIN_ENTER();
  if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranule;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  CKPT_STANDIN_ENTER();
  if (handle == nullptr || prop == nullptr || flags != 0 || size == 0 || !granular(size))
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (prop->location.id < 0 || prop->location.id >= settings().gpus) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard guard(lock());
  CUresult result = CUDA_SUCCESS;
  Physical* made = physical_make(prop->location.id, size, prop, result);
  if (made != nullptr) *handle = reinterpret_cast<CUmemGenericAllocationHandle>(made);
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Physical* physical = physical_of(handle);
  if (physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  physical_drop(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Physical* physical = physical_of(handle);
  if (physical == nullptr || flags != 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!granular(ptr) || !granular(size) || !granular(offset)) return CUDA_ERROR_INVALID_VALUE;
  if (offset > physical->size || size > physical->size - offset) return CUDA_ERROR_INVALID_VALUE;
  auto reserved = memory().reservations.upper_bound(ptr);
  if (reserved == memory().reservations.begin()) return CUDA_ERROR_INVALID_VALUE;
  --reserved;
  if (ptr + size > reserved->first + reserved->second) return CUDA_ERROR_INVALID_VALUE;
  auto next = memory().maps.lower_bound(ptr);
  if (next != memory().maps.end() && next->first < ptr + size) return CUDA_ERROR_INVALID_VALUE;
  if (next != memory().maps.begin() && std::prev(next)->first + std::prev(next)->second.size > ptr)
    return CUDA_ERROR_INVALID_VALUE;
  return physical_map(ptr, physical, offset, size, PROT_NONE) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/// The real one does not wait for work that uses the memory, which then faults: here that is an error at once.
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  CKPT_STANDIN_ENTER();
  if (in_use(ptr, size)) {
    ::fprintf(stderr, "stand-in: cuMemUnmap of memory that submitted work uses\n");
    return CUDA_ERROR_UNMAP_FAILED;
  }
  std::lock_guard guard(lock());
  bool done = for_mappings(ptr, size, [](uint64_t at, Mapping& mapping) {
    Physical* physical = mapping.physical;
    shadow_unmap(at, mapping.size);
    memory().maps.erase(at);
    physical_drop(physical);
  });
  return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  CKPT_STANDIN_ENTER();
  if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  int protection = PROT_NONE;
  for (size_t i = 0; i < count; ++i) {
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) protection |= PROT_READ;
    if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) protection |= PROT_WRITE;
  }
  bool done = for_mappings(ptr, size, [&](uint64_t at, Mapping& mapping) {
    mapping.protection = protection;
    ::mprotect(shadow(at), mapping.size, protection);
  });
  return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  auto it = memory().maps.upper_bound(ptr);
  if (flags == nullptr || location == nullptr || it == memory().maps.begin()) return CUDA_ERROR_INVALID_VALUE;
  --it;
  if (ptr - it->first >= it->second.size) return CUDA_ERROR_INVALID_VALUE;
  int protection = it->second.protection;
  *flags = (protection & PROT_WRITE) != 0  ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
           : (protection & PROT_READ) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                           : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Physical* physical = physical_of(handle);
  if (out == nullptr || physical == nullptr || (physical->prop.requestedHandleTypes & type) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (settings().reexport && (physical->imported || physical->restored)) return CUDA_ERROR_INVALID_VALUE;
  int fd = ::fcntl(physical->fd, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  ::memcpy(out, &fd, sizeof(fd));
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType type) {
  CKPT_STANDIN_ENTER();
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  int given = static_cast<int>(reinterpret_cast<intptr_t>(os_handle)), gpu = -1;
  char path[64], name[128] = "";
  ::snprintf(path, sizeof(path), "/proc/self/fd/%d", given);
  if (::readlink(path, name, sizeof(name) - 1) < 0) return CUDA_ERROR_INVALID_VALUE;
  if (::sscanf(name, "/memfd:standin-export-%d", &gpu) != 1) return CUDA_ERROR_INVALID_VALUE;
  struct stat about;
  if (::fstat(given, &about) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  Physical made;
  for (int device = 0; device < settings().gpus; ++device)
    if (gpu_of[device] == gpu) made.device = device;
  made.size = static_cast<size_t>(about.st_size);
  made.fd = ::fcntl(given, F_DUPFD_CLOEXEC, 700);
  made.own_fd = made.imported = true;
  made.references = 1;
  made.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  made.prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, made.device};
  made.inode = about.st_ino;
  if (made.fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (!ledger_hold(gpu, made.size, made.inode)) return ::close(made.fd), CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(&memory().physical.emplace_back(made));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Physical* physical = physical_of(handle);
  if (prop == nullptr || physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = physical->prop;
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  auto address = reinterpret_cast<uint64_t>(addr);
  auto it = memory().maps.upper_bound(address);
  if (handle == nullptr || it == memory().maps.begin()) return CUDA_ERROR_INVALID_VALUE;
  --it;
  bool by_map = address - it->first < it->second.size && allocation_at(address) == nullptr;
  if (!by_map) return CUDA_ERROR_INVALID_VALUE;
  ++it->second.physical->references;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(it->second.physical);
  return CUDA_SUCCESS;
}

}  // namespace ckpt::cuda::api
