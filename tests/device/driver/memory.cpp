// Physical memory, mappings and plain allocations, beneath the calls.
#include "tests/device/driver/state.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace ckpt::standin {

Memory& memory() {
  static Memory& all = *new Memory;
  return all;
}

namespace {

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

/// Room in the memfd of a device, which grows and is never used twice: given back it is a hole.
bool take_file(Physical& physical) {
  Memory& all = memory();
  int& fd = all.pool_fd[physical.device];
  if (fd < 0) fd = make_memfd("standin-gpu");
  physical.fd = fd;
  physical.offset = all.pool_end[physical.device];
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(physical.offset + physical.size)) != 0) return false;
  all.pool_end[physical.device] += physical.size;
  return true;
}

uint64_t next_id() {
  static uint64_t id = 0;
  return ++id;
}

}  // namespace

Physical* physical_make(int device, size_t size, const CUmemAllocationProp* prop, CUresult& result) {
  result = CUDA_ERROR_OUT_OF_MEMORY;
  Physical made;
  made.device = device;
  made.size = size;
  made.references = 1;
  made.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  if (prop != nullptr) made.prop = *prop;
  const int gpu = gpu_of[device];
  bool done;
  if ((made.prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    char name[32];
    ::snprintf(name, sizeof(name), "standin-export-%d", gpu);
    made.fd = make_memfd(name);
    made.own_fd = true;
    made.inode = inode_of(made.fd);
    done = made.fd >= 0 && ledger_hold(gpu, size, made.inode) && ::ftruncate(made.fd, static_cast<off_t>(size)) == 0;
    if (!done && made.fd >= 0) {
      ledger_drop(made.inode);
      ::close(made.fd);
    }
  } else {
    done = ledger_take(gpu, size);
    if (done && !take_file(made)) {
      ledger_give(gpu, size);
      done = false;
    }
  }
  if (!done) return nullptr;
  result = CUDA_SUCCESS;
  return &memory().physical.emplace_back(made);
}

void physical_drop(Physical* physical) {
  if (--physical->references > 0) return;
  if (physical->own_fd) {
    ::close(physical->fd);
    if (physical->inode != 0) ledger_drop(physical->inode);
  } else {
    ::fallocate(physical->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(physical->offset),
                static_cast<off_t>(physical->size));
    ledger_give(gpu_of[physical->device], physical->size);
  }
  memory().physical.remove_if([&](const Physical& each) { return &each == physical; });
}

bool physical_map(uint64_t address, Physical* physical, uint64_t offset, size_t size, int protection) {
  Mapping mapping{physical, offset, size, protection};
  if (!shadow_map(address, mapping)) return false;
  memory().maps[address] = mapping;
  ++physical->references;
  return true;
}

namespace {

/// Memory of its own at a new address.
uint64_t map_new(int device, size_t size, CUresult& result) {
  Physical* physical = physical_make(device, size, nullptr, result);
  if (physical == nullptr) return 0;
  uint64_t address = arena_take(size, kGranule);
  if (address != 0 && !physical_map(address, physical, 0, size, PROT_READ | PROT_WRITE)) {
    arena_give(address, size);
    address = 0;
  }
  physical_drop(physical);  // the mapping holds it
  if (address == 0) result = CUDA_ERROR_OUT_OF_MEMORY;
  return address;
}

void unmap_all(uint64_t address, size_t size) {
  auto found = memory().maps.find(address);
  shadow_unmap(address, size);
  Physical* physical = found->second.physical;
  memory().maps.erase(found);
  physical_drop(physical);
  arena_give(address, size);
}

uint64_t take_small(int device, size_t size, uint64_t& block, CUresult& result) {
  auto& blocks = memory().blocks;
  for (auto& [address, each] : blocks) {
    if (each.device != device) continue;
    for (auto [at, free] : each.free) {
      if (free < size) continue;
      each.free.erase(at);
      if (free > size) each.free[at + size] = free - size;
      block = address;
      return at;
    }
  }
  uint64_t address = map_new(device, kGranule, result);
  if (address == 0) return 0;
  blocks[address] = Block{device, {{address + size, kGranule - size}}};
  block = address;
  return address;
}

void give_small(uint64_t block, uint64_t address, size_t size) {
  auto found = memory().blocks.find(block);
  auto& free = found->second.free;
  auto next = free.lower_bound(address);
  if (next != free.end() && next->first == address + size) {
    size += next->second;
    next = free.erase(next);
  }
  if (next != free.begin() && std::prev(next)->first + std::prev(next)->second == address)
    std::prev(next)->second += size;
  else
    free[address] = size;
  if (free.begin()->second != kGranule) return;
  memory().blocks.erase(found);
  unmap_all(block, kGranule);
}

}  // namespace

CUresult allocate(Context* context, size_t size, Kind kind, Pool* pool, CUdeviceptr* out) {
  if (out == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size > settings().capacity[gpu_of[context->device]]) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard guard(lock());
  CUresult result = CUDA_SUCCESS;
  Allocation made{size, kind, context, pool, next_id(), 0};
  uint64_t address = size < kSmall ? take_small(context->device, round_up(size, kSmallAlignment), made.block, result)
                                   : map_new(context->device, round_up(size, kGranule), result);
  if (address == 0) return result;
  memory().allocations[address] = made;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr address) {
  std::lock_guard guard(lock());
  auto found = memory().allocations.find(address);
  if (found == memory().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  Allocation allocation = found->second;
  memory().allocations.erase(found);
  if (allocation.block != 0)
    give_small(allocation.block, address, round_up(allocation.size, kSmallAlignment));
  else
    unmap_all(address, round_up(allocation.size, kGranule));
  return CUDA_SUCCESS;
}

bool reachable(uint64_t address, size_t size, int rights) {
  if (!is_device(address)) return true;
  std::lock_guard guard(lock());
  auto& maps = memory().maps;
  auto it = maps.upper_bound(address);
  if (it == maps.begin()) return false;
  --it;
  for (uint64_t at = address, end = address + size;; ++it) {
    if (it == maps.end() || at < it->first || at >= it->first + it->second.size) return false;
    if ((it->second.protection & rights) != rights) return false;
    at = it->first + it->second.size;
    if (at >= end) return true;
  }
}

const std::pair<const uint64_t, Allocation>* allocation_at(uint64_t address) {
  auto& all = memory().allocations;
  auto it = all.upper_bound(address);
  if (it == all.begin()) return nullptr;
  --it;
  return address - it->first < it->second.size ? &*it : nullptr;
}

const std::pair<const uint64_t, HostRange>* host_range_at(const void* pointer) {
  auto address = reinterpret_cast<uint64_t>(pointer);
  auto& all = memory().host;
  auto it = all.upper_bound(address);
  if (it == all.begin()) return nullptr;
  --it;
  return address - it->first < it->second.size ? &*it : nullptr;
}

}  // namespace ckpt::standin
