// Every allocation that the program has: large device memory is made here through the virtual memory calls, so that its
// physical memory can be exported, taken away and put back at the same address; the rest is the driver's and is noted.
#pragma once

#include <optional>
#include <vector>

#include "plugins/cuda/agent_protocol.h"
#include "plugins/interposer/driver.h"

namespace ckpt::interposer {

/// From this size on the memory is ours: the driver's own granularity.
inline constexpr size_t kOwnedFrom = 2 << 20;

using agent::Kind;

struct Allocation {
  uint64_t id = 0;  ///< never used again
  CUdeviceptr base = 0;
  size_t size = 0;    ///< as the program asked
  size_t mapped = 0;  ///< owned: rounded up to the granularity
  int device = 0;
  Kind kind = Kind::kNative;
  CUcontext context = nullptr;
  CUmemGenericAllocationHandle handle = 0;  ///< owned and attached
  CUmemGenericAllocationHandle program_handle = 0;  ///< mapped by the program: its handle (physical.h)
  bool released = false;
  bool imported = false;  ///< attached: its memory came by a descriptor
  bool blank = false;     ///< attached: its memory is fresh, and no client has said that the content is there
  int kept_fd = -1;  ///< of a released one: the memory, until the client says that it has it
};

/// Mapped by the program itself.
inline bool is_mapping(const Allocation& a) {
  return a.kind == Kind::kMapped || a.kind == Kind::kImported || a.program_handle != 0;
}

/// CUDA_ERROR_NOT_SUPPORTED: the caller asks the driver for native memory instead.
CUresult allocate_owned(CUdeviceptr* out, size_t size);
/// Of one that is out of the table. Waits for the context's work as cuMemFree does; while a stream is being captured,
/// when a free of ours finds none.
CUresult free_owned(const Allocation& allocation);
/// Those that had to wait for the end of a capture.
void free_deferred();

/// In the current context.
void note(Kind kind, CUdeviceptr base, size_t size);
/// A mapping that the program made of memory of physical.h.
void note_mapped(CUdeviceptr base, size_t size, int device, CUmemGenericAllocationHandle program_handle,
                 CUmemGenericAllocationHandle real, bool owned);
/// It is the program's alone from here on.
void disown(CUdeviceptr base);
/// Out of the table.
std::optional<Allocation> take(CUdeviceptr base);
/// What `take` gave, unless there is another at its address by now.
void put_back(const Allocation& taken);
/// Those that begin in the range, out of the table.
std::vector<Allocation> take_range(CUdeviceptr base, size_t size);
/// The one that the address lies in; host memory is found, too.
std::optional<Allocation> find(CUdeviceptr address);
std::optional<Allocation> find_id(uint64_t id);
/// What a pointer to `address` may stand for: the owned allocation that it lies in; of mappings that the program made,
/// all that follow each other without a gap, since it takes them for one. 0: none.
struct Reach {
  CUdeviceptr start = 0;
  size_t size = 0;
};
Reach reach_of(CUdeviceptr address);
/// By address.
std::vector<Allocation> all_allocations();
/// Owned ones that begin in or reach into the range, by address.
std::vector<Allocation> owned_in(CUdeviceptr start, size_t size);

/// A context has ended, and with it the driver's allocations in it: ours go, too. Their ids.
std::vector<uint64_t> forget_context(CUcontext context);

/// Peers: what other devices may read and write this device's memory.
void enable_peer(int owner, int peer, bool on);

// For the agent. The API is locked.
CUresult export_fd(uint64_t id, int* fd);
/// Keeps the memory alive through a descriptor until `drop_kept`; not where its content is missing.
CUresult release_memory(uint64_t id);
/// fd -1: what was kept, or fresh memory.
CUresult attach_memory(uint64_t id, int fd);
/// API locked, work drained. New memory of our own takes the place of an allocation's, with the same content: of what
/// came by a descriptor, since the driver checkpoints no memory that another process made, or of any.
CUresult renew_memory(uint64_t id, bool any);
void drop_kept();
/// Of memory that is fresh: the client says so.
void content_is_there();
/// Puts back what was kept. False: something is without memory still, or without its content.
bool attach_kept();

/// Exportable device memory, mapped: what owned allocations and copies set aside are made of.
struct Mapped {
  CUdeviceptr base = 0;
  size_t size = 0;
  CUmemGenericAllocationHandle handle = 0;
};
CUresult map_memory(int device, size_t size, Mapped* out);
void unmap_memory(const Mapped& memory);

/// A context is made current for a scope.
class InContext {
 public:
  explicit InContext(CUcontext context) : pushed_(drv::cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {}
  ~InContext() {
    CUcontext popped;
    if (pushed_) drv::cuCtxPopCurrent_v2(&popped);
  }
  InContext(const InContext&) = delete;
  explicit operator bool() const { return pushed_; }

 private:
  bool pushed_;
};

void reset_allocations_after_fork();

}  // namespace ckpt::interposer
