#include "plugins/interposer/allocations.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <map>
#include <new>
#include <mutex>
#include <shared_mutex>

#include "plugins/interposer/contexts.h"
#include "plugins/interposer/physical.h"

namespace ckpt::interposer {

namespace {

constexpr int kMaxDevices = 64;
constexpr auto kRdmaWithVmm = static_cast<CUdevice_attribute>(110);

struct DeviceFacts {
  size_t granularity = 0;  ///< 0: memory cannot be owned there
  bool rdma = false;
  uint64_t peers = 0;  ///< devices, by bit
  bool known = false;
};

struct State {
  std::shared_mutex mutex;
  std::map<CUdeviceptr, Allocation> table;
  std::map<uint64_t, CUdeviceptr> by_id;
  std::array<DeviceFacts, kMaxDevices> devices;
  std::vector<Allocation> deferred;
  uint64_t next_id = 1;
  std::atomic<int> kept{0};  ///< released ones: the table stands still while there are any
};
/// Never destroyed: other threads may be in here while the program ends.
alignas(State) unsigned char g_place[sizeof(State)];
State& state() {
  static State* made = new (g_place) State;
  return *made;
}

int attribute(CUdevice_attribute which, int device) {
  int value = 0;
  return drv::cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

CUmemAllocationProp properties(int device, bool rdma) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  prop.allocFlags.gpuDirectRDMACapable = rdma;
  return prop;
}

DeviceFacts facts(int device) {
  if (device < 0 || device >= kMaxDevices) return {};
  {
    std::shared_lock lock(state().mutex);
    if (state().devices[device].known) return state().devices[device];
  }
  DeviceFacts found;
  const CUmemAllocationProp prop = properties(device, false);
  const bool able =
      attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != 0 &&
      attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) != 0 &&
      drv::cuMemGetAllocationGranularity(&found.granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS;
  if (!able || found.granularity == 0 || (found.granularity & (found.granularity - 1)) != 0) found.granularity = 0;
  found.rdma = attribute(kRdmaWithVmm, device) != 0;
  found.known = true;
  std::unique_lock lock(state().mutex);
  found.peers = state().devices[device].peers;
  state().devices[device] = found;
  return found;
}

CUresult allow_access(CUdeviceptr base, size_t size, int device, uint64_t peers) {
  std::array<CUmemAccessDesc, kMaxDevices> who;
  size_t count = 0;
  who[count++] = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (int peer = 0; peer < kMaxDevices; ++peer) {
    if (peer != device && (peers >> peer & 1) != 0)
      who[count++] = {{CU_MEM_LOCATION_TYPE_DEVICE, peer}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  }
  return drv::cuMemSetAccess(base, size, who.data(), count);
}

CUresult map_at(CUdeviceptr base, size_t size, int device, CUmemGenericAllocationHandle handle,
                CUmemGenericAllocationHandle program_handle) {
  CUresult result = drv::cuMemMap(base, size, 0, handle, 0);
  if (result != CUDA_SUCCESS) return result;
  const std::vector<CUmemAccessDesc> access = access_of_physical(program_handle);
  if (program_handle == 0) {
    result = allow_access(base, size, device, facts(device).peers);
  } else if (!access.empty()) {
    result = drv::cuMemSetAccess(base, size, access.data(), access.size());
  }
  if (result != CUDA_SUCCESS) drv::cuMemUnmap(base, size);
  return result;
}

CUresult create_at(CUdeviceptr base, size_t size, int device, CUmemGenericAllocationHandle* handle,
                   CUmemGenericAllocationHandle program_handle = 0) {
  const CUmemAllocationProp prop = properties(device, facts(device).rdma);
  CUresult result = drv::cuMemCreate(handle, size, &prop, 0);
  if (result != CUDA_SUCCESS) return result;
  result = map_at(base, size, device, *handle, program_handle);
  if (result != CUDA_SUCCESS) drv::cuMemRelease(*handle);
  return result;
}

void put(Allocation made) {
  std::unique_lock lock(state().mutex);
  made.id = state().next_id++;
  if (auto old = state().table.find(made.base); old != state().table.end()) state().by_id.erase(old->second.id);
  state().by_id[made.id] = made.base;
  state().table[made.base] = made;
}

void unmap(const Allocation& gone) {
  if (gone.kept_fd >= 0) ::close(gone.kept_fd);
  if (!gone.released) {
    drv::cuMemUnmap(gone.base, gone.mapped);
    drv::cuMemRelease(gone.handle);
  }
  drv::cuMemAddressFree(gone.base, gone.mapped);
}

void update(const Allocation& changed) {
  std::unique_lock lock(state().mutex);
  if (auto at = state().table.find(changed.base); at != state().table.end() && at->second.id == changed.id)
    at->second = changed;
}

}  // namespace

CUresult map_memory(int device, size_t size, Mapped* out) {
  const size_t granularity = facts(device).granularity;
  if (granularity == 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (size == 0 || size > SIZE_MAX - granularity) return CUDA_ERROR_OUT_OF_MEMORY;
  out->size = (size + granularity - 1) & ~(granularity - 1);
  CUresult result = drv::cuMemAddressReserve(&out->base, out->size, 0, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  result = create_at(out->base, out->size, device, &out->handle);
  if (result != CUDA_SUCCESS) drv::cuMemAddressFree(out->base, out->size);
  return result;
}

void unmap_memory(const Mapped& memory) {
  drv::cuMemUnmap(memory.base, memory.size);
  drv::cuMemRelease(memory.handle);
  drv::cuMemAddressFree(memory.base, memory.size);
}

CUresult allocate_owned(CUdeviceptr* out, size_t size) {
  CUcontext context = nullptr;
  int device = 0;
  if (out == nullptr || size < kOwnedFrom) return CUDA_ERROR_NOT_SUPPORTED;
  if (drv::cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (drv::cuCtxGetDevice(&device) != CUDA_SUCCESS) return CUDA_ERROR_NOT_SUPPORTED;
  context_seen(context, device);
  free_deferred();
  Mapped memory;
  if (map_memory(device, size, &memory) != CUDA_SUCCESS) return CUDA_ERROR_NOT_SUPPORTED;
  put({.base = memory.base,
       .size = size,
       .mapped = memory.size,
       .device = device,
       .kind = Kind::kOwned,
       .context = context,
       .handle = memory.handle});
  *out = memory.base;
  return CUDA_SUCCESS;
}

CUresult free_owned(const Allocation& allocation) {
  if (captures_active()) {
    std::unique_lock lock(state().mutex);
    state().deferred.push_back(allocation);
    return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  if (InContext scope(allocation.context); scope) result = drv::cuCtxSynchronize();
  unmap(allocation);
  return result;
}

void free_deferred() {
  std::vector<Allocation> waiting;
  {
    std::shared_lock lock(state().mutex);
    if (state().deferred.empty()) return;
  }
  if (captures_active()) return;
  {
    std::unique_lock lock(state().mutex);
    waiting.swap(state().deferred);
  }
  for (const Allocation& allocation : waiting) free_owned(allocation);
}

void note(Kind kind, CUdeviceptr base, size_t size) {
  CUcontext context = nullptr;
  int device = 0;
  drv::cuCtxGetCurrent(&context);
  if (context != nullptr && drv::cuCtxGetDevice(&device) == CUDA_SUCCESS) context_seen(context, device);
  put({.base = base, .size = size, .mapped = size, .device = device, .kind = kind, .context = context});
}

std::optional<Allocation> take(CUdeviceptr base) {
  std::unique_lock lock(state().mutex);
  auto at = state().table.find(base);
  if (at == state().table.end()) return std::nullopt;
  const Allocation found = at->second;
  state().by_id.erase(found.id);
  state().table.erase(at);
  return found;
}

void put_back(const Allocation& taken) {
  std::unique_lock lock(state().mutex);
  if (state().table.emplace(taken.base, taken).second) state().by_id[taken.id] = taken.base;
}

std::vector<Allocation> take_range(CUdeviceptr base, size_t size) {
  std::unique_lock lock(state().mutex);
  std::vector<Allocation> taken;
  for (auto at = state().table.lower_bound(base); at != state().table.end() && at->first - base < size;) {
    taken.push_back(at->second);
    state().by_id.erase(at->second.id);
    at = state().table.erase(at);
  }
  return taken;
}

void note_mapped(CUdeviceptr base, size_t size, int device, CUmemGenericAllocationHandle program_handle,
                 CUmemGenericAllocationHandle real, bool owned) {
  CUcontext context = nullptr;
  drv::cuCtxGetCurrent(&context);
  if (context == nullptr) context = primary_context(device);
  put({.base = base,
       .size = size,
       .mapped = size,
       .device = device,
       .kind = owned ? Kind::kOwned : Kind::kMapped,
       .context = context,
       .handle = real,
       .program_handle = program_handle});
}

void disown(CUdeviceptr base) {
  std::unique_lock lock(state().mutex);
  if (auto at = state().table.find(base); at != state().table.end()) at->second.kind = Kind::kMapped;
}

std::optional<Allocation> find(CUdeviceptr address) {
  std::shared_lock lock(state().mutex);
  auto at = state().table.upper_bound(address);
  if (at == state().table.begin()) return std::nullopt;
  --at;
  if (address - at->first >= at->second.mapped) return std::nullopt;
  return at->second;
}

std::optional<Allocation> find_id(uint64_t id) {
  std::shared_lock lock(state().mutex);
  auto at = state().by_id.find(id);
  if (at == state().by_id.end()) return std::nullopt;
  return state().table.at(at->second);
}

Reach reach_of(CUdeviceptr address) {
  std::shared_lock lock(state().mutex);
  const auto& table = state().table;
  auto at = table.upper_bound(address);
  if (at == table.begin()) return {};
  --at;
  if ((at->second.kind != Kind::kOwned && !is_mapping(at->second)) || address - at->first >= at->second.mapped)
    return {};
  Reach reach{at->first, at->second.mapped};
  if (!is_mapping(at->second)) return reach;
  auto joins = [&](const Allocation& left, const Allocation& right) {
    return is_mapping(left) && is_mapping(right) && left.base + left.mapped == right.base;
  };
  for (auto left = at; left != table.begin() && joins(std::prev(left)->second, left->second);) {
    --left;
    reach.start = left->first;
    reach.size += left->second.mapped;
  }
  for (auto right = at; std::next(right) != table.end() && joins(right->second, std::next(right)->second);) {
    ++right;
    reach.size += right->second.mapped;
  }
  return reach;
}

std::vector<Allocation> all_allocations() {
  std::shared_lock lock(state().mutex);
  std::vector<Allocation> all;
  all.reserve(state().table.size());
  for (const auto& [base, allocation] : state().table) all.push_back(allocation);
  return all;
}

std::vector<Allocation> owned_in(CUdeviceptr start, size_t size) {
  std::shared_lock lock(state().mutex);
  std::vector<Allocation> found;
  auto at = state().table.upper_bound(start);
  if (at != state().table.begin()) --at;
  for (; at != state().table.end() && (at->first < start || at->first - start < size); ++at) {
    const bool reaches = at->first >= start || start - at->first < at->second.mapped;
    if (reaches && at->second.kind == Kind::kOwned) found.push_back(at->second);
  }
  return found;
}

std::vector<uint64_t> forget_context(CUcontext context) {
  std::vector<Allocation> gone;
  std::vector<uint64_t> ids;
  {
    std::unique_lock lock(state().mutex);
    for (auto at = state().table.begin(); at != state().table.end();) {
      // Pools are their device's, and mappings nobody's.
      if (at->second.context != context || at->second.kind == Kind::kPool || is_mapping(at->second)) {
        ++at;
        continue;
      }
      if (at->second.kind == Kind::kOwned) gone.push_back(at->second);
      state().by_id.erase(at->second.id);
      at = state().table.erase(at);
    }
  }
  for (const Allocation& allocation : gone) {
    unmap(allocation);
    ids.push_back(allocation.id);
  }
  return ids;
}

void enable_peer(int owner, int peer, bool on) {
  if (owner < 0 || owner >= kMaxDevices || peer < 0 || peer >= kMaxDevices) return;
  const uint64_t bit = 1ull << peer;
  {
    std::unique_lock lock(state().mutex);
    uint64_t& peers = state().devices[owner].peers;
    peers = on ? peers | bit : peers & ~bit;
  }
  const CUmemAccessDesc who = {{CU_MEM_LOCATION_TYPE_DEVICE, peer},
                               on ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
  for (const Allocation& allocation : all_allocations()) {
    if (allocation.kind == Kind::kOwned && allocation.program_handle == 0 && allocation.device == owner &&
        !allocation.released)
      drv::cuMemSetAccess(allocation.base, allocation.mapped, &who, 1);
  }
}

CUresult export_fd(uint64_t id, int* fd) {
  const auto found = find_id(id);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (found->kind != Kind::kOwned) return CUDA_ERROR_NOT_SUPPORTED;
  if (found->released) return CUDA_ERROR_NOT_MAPPED;
  return drv::cuMemExportToShareableHandle(fd, found->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

CUresult release_memory(uint64_t id) {
  auto found = find_id(id);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (found->kind != Kind::kOwned) return CUDA_ERROR_NOT_SUPPORTED;
  if (found->released) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  if (!found->blank)
    result =
        drv::cuMemExportToShareableHandle(&found->kept_fd, found->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return result;
  result = drv::cuMemUnmap(found->base, found->mapped);
  if (result != CUDA_SUCCESS) {
    if (found->kept_fd >= 0) ::close(found->kept_fd);
    return result;
  }
  if (found->kept_fd >= 0) ++state().kept;
  drv::cuMemRelease(found->handle);
  found->blank = false;
  found->handle = 0;
  found->released = true;
  update(*found);
  return CUDA_SUCCESS;
}

CUresult attach_memory(uint64_t id, int fd) {
  auto found = find_id(id);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (found->kind != Kind::kOwned) return CUDA_ERROR_NOT_SUPPORTED;
  if (!found->released) return CUDA_ERROR_ALREADY_MAPPED;
  const int source = fd >= 0 ? fd : found->kept_fd;
  CUresult result;
  if (source < 0) {
    result = create_at(found->base, found->mapped, found->device, &found->handle, found->program_handle);
  } else {
    result = drv::cuMemImportFromShareableHandle(&found->handle, reinterpret_cast<void*>(static_cast<intptr_t>(source)),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result == CUDA_SUCCESS) {
      result = map_at(found->base, found->mapped, found->device, found->handle, found->program_handle);
      if (result != CUDA_SUCCESS) drv::cuMemRelease(found->handle);
    }
  }
  if (result != CUDA_SUCCESS) return result;
  if (found->kept_fd >= 0) {
    ::close(found->kept_fd);
    --state().kept;
  }
  found->kept_fd = -1;
  found->released = false;
  found->imported = source >= 0;
  found->blank = source < 0;
  if (found->program_handle != 0) replace_real(found->program_handle, found->handle);
  update(*found);
  return CUDA_SUCCESS;
}

CUresult renew_memory(uint64_t id, bool any) {
  auto found = find_id(id);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (found->kind != Kind::kOwned) return CUDA_ERROR_NOT_SUPPORTED;
  if (found->released || !(found->imported || any)) return CUDA_SUCCESS;
  InContext scope(found->context);
  if (!scope) return CUDA_ERROR_INVALID_CONTEXT;
  Mapped fresh;
  CUresult result = map_memory(found->device, found->mapped, &fresh);
  if (result != CUDA_SUCCESS) return result;
  result = drv::cuMemcpyDtoD_v2(fresh.base, found->base, found->mapped);
  if (result == CUDA_SUCCESS) result = drv::cuCtxSynchronize();
  if (result == CUDA_SUCCESS) result = drv::cuMemUnmap(found->base, found->mapped);
  if (result != CUDA_SUCCESS) {
    unmap_memory(fresh);
    return result;
  }
  drv::cuMemUnmap(fresh.base, fresh.size);
  drv::cuMemAddressFree(fresh.base, fresh.size);
  result = map_at(found->base, found->mapped, found->device, fresh.handle, found->program_handle);
  const bool taken = result == CUDA_SUCCESS;
  if (!taken)
    (void)map_at(found->base, found->mapped, found->device, found->handle, found->program_handle);  // as it was
  drv::cuMemRelease(taken ? found->handle : fresh.handle);
  if (!taken) return result;
  found->handle = fresh.handle;
  found->imported = false;
  if (found->program_handle != 0) replace_real(found->program_handle, found->handle);
  update(*found);
  return CUDA_SUCCESS;
}

void drop_kept() {
  std::unique_lock lock(state().mutex);
  for (auto& [base, allocation] : state().table) {
    if (allocation.kept_fd >= 0) ::close(allocation.kept_fd);
    allocation.kept_fd = -1;
  }
  state().kept.store(0);
}

void content_is_there() {
  std::unique_lock lock(state().mutex);
  for (auto& [base, allocation] : state().table) allocation.blank = false;
}

bool attach_kept() {
  bool whole = true;
  for (const Allocation& allocation : all_allocations()) {
    if (allocation.blank) whole = false;
    if (allocation.released) whole &= allocation.kept_fd >= 0 && attach_memory(allocation.id, -1) == CUDA_SUCCESS;
  }
  return whole;
}

void reset_allocations_after_fork() {
  // The lock may have been held, and the table been changed, by a thread that is not here: it is left where it lies.
  if (state().kept.load() != 0) {
    for (const auto& [base, allocation] : state().table) {
      if (allocation.kept_fd >= 0) ::close(allocation.kept_fd);
    }
  }
  new (g_place) State;
}

}  // namespace ckpt::interposer
