#include "plugins/interposer/physical.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <set>

#include "plugins/interposer/allocations.h"
#include "plugins/interposer/contexts.h"

namespace ckpt::interposer {

namespace {

/// Handles of ours: no address of a user program looks so, nor does a small number.
constexpr Handle kOurs = 0xc4b7ull << 48;

struct Physical {
  Handle real = 0;
  size_t size = 0;
  int device = 0;
  CUmemAllocationHandleType asked = CU_MEM_HANDLE_TYPE_NONE;
  unsigned references = 1;  ///< of the program
  unsigned mappings = 0;
  bool shared = false;
  CUdeviceptr base = 0;  ///< of its only mapping
  std::vector<CUmemAccessDesc> access;
};

struct State {
  std::mutex mutex;
  std::map<Handle, Physical> table;
  std::set<Handle> imported;  ///< the driver's
  Handle next = kOurs + 1;
};
alignas(State) unsigned char g_place[sizeof(State)];
State& state() {
  static State* made = new (g_place) State;
  return *made;
}

Physical* find_physical(Handle handle) {
  auto at = state().table.find(handle);
  return at == state().table.end() ? nullptr : &at->second;
}

void share(Physical& physical) {
  if (physical.shared) return;  // another memory may be at `base` by now
  physical.shared = true;
  if (physical.mappings != 0) disown(physical.base);
}

/// The driver frees the memory when nothing refers to it any more, mappings included; so does this.
void drop_unused(Handle handle) {
  Physical* physical = find_physical(handle);
  if (physical == nullptr || physical->references != 0 || physical->mappings != 0) return;
  drv::cuMemRelease(physical->real);
  state().table.erase(handle);
}

}  // namespace

CUresult create_physical(Handle* out, size_t size, const CUmemAllocationProp* prop, unsigned long long flags) {
  if (out == nullptr || prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->allocFlags.usage != 0 ||
      prop->allocFlags.compressionType != 0 || size < kOwnedFrom ||
      (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Physical made;
  made.size = size;
  made.device = prop->location.id;
  made.asked = prop->requestedHandleTypes;
  CUmemAllocationProp exportable = *prop;
  exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (drv::cuMemCreate(&made.real, size, &exportable, flags) != CUDA_SUCCESS) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(state().mutex);
  *out = state().next++;
  state().table[*out] = made;
  return CUDA_SUCCESS;
}

Handle real_handle(Handle handle, bool share_it) {
  std::lock_guard lock(state().mutex);
  Physical* physical = find_physical(handle);
  if (physical == nullptr) return handle;
  if (share_it) share(*physical);
  return physical->real;
}

bool release_physical(Handle handle) {
  std::lock_guard lock(state().mutex);
  Physical* physical = find_physical(handle);
  state().imported.erase(handle);
  if (physical == nullptr || physical->references == 0) return false;
  --physical->references;
  drop_unused(handle);
  return true;
}

bool retain_physical(CUdeviceptr address, Handle* out) {
  std::lock_guard lock(state().mutex);
  for (auto& [handle, physical] : state().table) {
    if (physical.mappings == 0 || physical.shared || address < physical.base ||
        address - physical.base >= physical.size)
      continue;
    ++physical.references;
    *out = handle;
    return true;
  }
  return false;
}

void restore_properties(Handle handle, CUmemAllocationProp* prop) {
  std::lock_guard lock(state().mutex);
  if (const Physical* physical = find_physical(handle); physical != nullptr)
    prop->requestedHandleTypes = physical->asked;
}

void physical_imported(Handle handle) {
  std::lock_guard lock(state().mutex);
  state().imported.insert(handle);
}

void physical_mapped(Handle handle, CUdeviceptr base, size_t size, size_t offset) {
  std::lock_guard lock(state().mutex);
  Physical* physical = find_physical(handle);
  if (physical == nullptr)
    return note(state().imported.count(handle) != 0 ? Kind::kImported : Kind::kMapped, base, size);
  if (++physical->mappings > 1 || offset != 0 || size != physical->size) share(*physical);
  if (physical->mappings == 1) {
    physical->base = base;
    physical->access.clear();
  }
  note_mapped(base, size, physical->device, handle, physical->real, !physical->shared);
}

void physical_unmapped(Handle handle) {
  std::lock_guard lock(state().mutex);
  if (Physical* physical = find_physical(handle); physical != nullptr && physical->mappings != 0) --physical->mappings;
  drop_unused(handle);
}

void access_set(CUdeviceptr base, size_t size, const CUmemAccessDesc* access, size_t count) {
  std::lock_guard lock(state().mutex);
  for (auto& [handle, physical] : state().table) {
    if (physical.mappings == 0 || physical.base + physical.size <= base || physical.base >= base + size) continue;
    if (physical.base < base || physical.base + physical.size > base + size) {
      share(physical);  // a part of it: not to be told again in one call
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      std::erase_if(physical.access, [&](const CUmemAccessDesc& a) {
        return a.location.type == access[i].location.type && a.location.id == access[i].location.id;
      });
      physical.access.push_back(access[i]);
    }
  }
}

void replace_real(Handle handle, Handle real) {
  std::lock_guard lock(state().mutex);
  if (Physical* physical = find_physical(handle); physical != nullptr) physical->real = real;
}

std::vector<CUmemAccessDesc> access_of_physical(Handle handle) {
  std::lock_guard lock(state().mutex);
  const Physical* physical = find_physical(handle);
  return physical == nullptr ? std::vector<CUmemAccessDesc>{} : physical->access;
}

void reset_physical_after_fork() {
  state();
  new (g_place) State;
}

}  // namespace ckpt::interposer
