#include "plugins/interposer/watch.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "plugins/interposer/contexts.h"
#include "plugins/interposer/guarded_calls.h"

namespace ckpt::interposer {

namespace {

constexpr uint64_t kPiece = 64 << 10;   ///< what is saved is rounded to this
constexpr uint64_t kArena = 64 << 20;   ///< new memory for copies set aside, at least, where the budget allows

struct Arena {
  Mapped memory;
  int device = 0;
  uint64_t used = 0;
};

struct Cow {
  bool on = false;
  uint64_t budget = 0, taken = 0;
  std::map<CUdeviceptr, CUdeviceptr> wanted;  ///< neither saved nor missed yet: start to end, disjoint
  std::vector<Arena> arenas;
  std::vector<Saved> saved;
  std::vector<Bytes> missed;
  std::map<CUcontext, CUstream> streams;
};

struct Recording {
  bool on = false, overflow = false;
  uint64_t limit = 0, sequence = 0;
  std::vector<Recorded> calls;
};

struct State {
  std::mutex mutex;  ///< of everything; held while bytes are copied aside: who writes the same waits for that
  Cow cow;
  Recording recording;
  std::set<uint64_t> unfilled;
  std::vector<uint64_t> demanded;
  std::set<uint64_t> named;  ///< demands that a client has been told
  std::condition_variable filled;
};
alignas(State) unsigned char g_place[sizeof(State)];
State& state() {
  static State* made = new (g_place) State;
  return *made;
}

void update_watch() { watch_api_lock(state().cow.on || state().recording.on || !state().unfilled.empty()); }

bool captured(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return drv::cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// ---- Copy-on-write ----

/// The parts of [start, end) that are wanted; they are not, from now on.
std::vector<Bytes> take_wanted(Cow& cow, CUdeviceptr start, CUdeviceptr end) {
  std::vector<Bytes> parts;
  auto at = cow.wanted.upper_bound(start);
  if (at != cow.wanted.begin() && std::prev(at)->second > start) --at;
  while (at != cow.wanted.end() && at->first < end) {
    const auto [low, high] = *at;
    const CUdeviceptr from = std::max(low, start), to = std::min(high, end);
    at = cow.wanted.erase(at);
    parts.push_back({from, to - from});
    if (low < from) cow.wanted[low] = from;
    if (to < high) cow.wanted[to] = high;
  }
  return parts;
}

Arena* room_for(Cow& cow, int device, uint64_t size, uint64_t* index) {
  for (*index = 0; *index < cow.arenas.size(); ++*index) {
    Arena& arena = cow.arenas[*index];
    if (arena.device == device && arena.memory.size - arena.used >= size) return &arena;
  }
  const uint64_t left = cow.budget - cow.taken;
  if (size > left) return nullptr;
  Arena fresh;
  fresh.device = device;
  for (const uint64_t wanted : {std::max(size, std::min(kArena, left)), size}) {
    if (map_memory(device, wanted, &fresh.memory) != CUDA_SUCCESS) continue;
    if (fresh.memory.size <= left) {
      cow.taken += fresh.memory.size;
      cow.arenas.push_back(fresh);
      return &cow.arenas.back();
    }
    unmap_memory(fresh.memory);  // rounded up to what the device gives
  }
  return nullptr;
}

CUstream stream_of(Cow& cow, CUcontext context) {
  CUstream& stream = cow.streams[context];
  if (stream == nullptr && drv::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) stream = nullptr;
  return stream;
}

/// One part of one allocation, copied and waited for: no work that may write it has been submitted since t1, so that no
/// order with other streams is needed.
bool save_part(Cow& cow, const Allocation& from, Bytes part) {
  uint64_t buffer = 0;
  Arena* arena = room_for(cow, from.device, part.size, &buffer);
  if (arena == nullptr) return false;
  InContext scope(from.context);
  const CUstream stream = scope ? stream_of(cow, from.context) : nullptr;
  if (stream == nullptr) return false;
  if (drv::cuMemcpyDtoDAsync_v2(arena->memory.base + arena->used, part.start, part.size, stream) != CUDA_SUCCESS)
    return false;
  if (drv::cuStreamSynchronize(stream) != CUDA_SUCCESS) return false;
  cow.saved.push_back({part, buffer, arena->memory.size, arena->used});
  arena->used += part.size;
  return true;
}

void save(Cow& cow, const Allocation& allocation, CUdeviceptr start, uint64_t size) {
  if (allocation.released) return;
  const CUdeviceptr low = std::max(start, allocation.base), end = allocation.base + allocation.mapped;
  const CUdeviceptr high = size > end - low ? end : std::min(end, start + size);
  if (low >= high) return;
  const CUdeviceptr first = allocation.base + (low - allocation.base) / kPiece * kPiece;
  const CUdeviceptr last =
      std::min<CUdeviceptr>(end, allocation.base + (high - allocation.base + kPiece - 1) / kPiece * kPiece);
  for (const Bytes& part : take_wanted(cow, first, last)) {
    if (!save_part(cow, allocation, part)) cow.missed.push_back(part);
  }
}

void save_writes(Cow& cow, const Access& access) {
  RelaxedCapture relaxed;
  if (access.unknown) {
    for (const Allocation& allocation : all_allocations()) {
      if (allocation.kind == Kind::kOwned) save(cow, allocation, allocation.base, allocation.mapped);
    }
  }
  for (const Bytes& write : access.writes) {
    for (const Allocation& allocation : owned_in(write.start, write.size))
      save(cow, allocation, write.start, write.size);
  }
}

// ---- Filling ----

/// Of the allocations that are not filled: those that the call may touch.
std::set<uint64_t> missing(const Access& access) {
  if (access.unknown) return state().unfilled;
  std::set<uint64_t> found;
  for (const auto* ranges : {&access.reads, &access.writes}) {
    for (const Bytes& range : *ranges) {
      for (const Allocation& allocation : owned_in(range.start, range.size)) {
        if (state().unfilled.count(allocation.id) != 0) found.insert(allocation.id);
      }
    }
  }
  return found;
}

void wait_until_filled(std::unique_lock<std::mutex>& lock, ThreadState* self, const Access& access) {
  while (!state().unfilled.empty()) {
    const std::set<uint64_t> needed = missing(access);
    if (needed.empty()) return;
    for (uint64_t id : needed) {
      if (state().named.insert(id).second) state().demanded.push_back(id);
    }
    step_out(self);
    state().filled.wait(lock, [&] {
      return std::none_of(needed.begin(), needed.end(), [](uint64_t id) { return state().unfilled.count(id) != 0; });
    });
    lock.unlock();
    resume(self);
    lock.lock();
  }
}

// ---- Recording ----

void write_down(Recording& recording, Access&& access, size_t index) {
  if (access.reads.empty() && access.writes.empty() && !access.unknown) return;
  if (recording.calls.size() >= recording.limit) {
    recording.overflow = true;
    return;
  }
  if (access.unknown) {
    for (const Allocation& allocation : all_allocations()) {
      if (allocation.kind != Kind::kOwned) continue;
      access.reads.push_back({allocation.base, allocation.mapped});
      access.writes.push_back({allocation.base, allocation.mapped});
    }
  }
  std::string name = name_of(access, index);
  recording.calls.push_back({recording.sequence++, std::move(access), std::move(name)});
}

}  // namespace

void before_call(ThreadState* self, size_t index, const Word* words) {
  const int kept = errno;
  Access access = access_of(index, words);
  if (!captured(access.stream)) {  // what is captured does not run now; its graph's launch comes by, too
    std::unique_lock lock(state().mutex);
    wait_until_filled(lock, self, access);
    if (state().cow.on) save_writes(state().cow, access);
    if (state().recording.on) write_down(state().recording, std::move(access), index);
  }
  errno = kept;
}

void before_free(const Allocation& allocation) {
  std::lock_guard lock(state().mutex);
  if (!state().cow.on) return;
  RelaxedCapture relaxed;
  save(state().cow, allocation, allocation.base, allocation.mapped);
}

void begin_cow(uint64_t budget) {
  end_cow();
  std::lock_guard lock(state().mutex);
  state().cow.on = true;
  state().cow.budget = budget;
  update_watch();
}

void want(const std::vector<Bytes>& ranges) {
  std::lock_guard lock(state().mutex);
  for (const Bytes& range : ranges) {
    CUdeviceptr& end = state().cow.wanted[range.start];
    end = std::max(end, range.start + range.size);
  }
}

void saved_so_far(std::vector<Saved>* saved, std::vector<Bytes>* missed) {
  std::lock_guard lock(state().mutex);
  *saved = state().cow.saved;
  *missed = state().cow.missed;
}

CUresult export_saved(uint64_t buffer, int* fd) {
  std::lock_guard lock(state().mutex);
  if (buffer >= state().cow.arenas.size()) return CUDA_ERROR_NOT_FOUND;
  return drv::cuMemExportToShareableHandle(fd, state().cow.arenas[buffer].memory.handle,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

void end_cow() {
  std::lock_guard lock(state().mutex);
  for (const Arena& arena : state().cow.arenas) unmap_memory(arena.memory);
  for (const auto& [context, stream] : state().cow.streams) {
    if (InContext scope(context); scope && stream != nullptr) drv::cuStreamDestroy_v2(stream);
  }
  state().cow = {};
  update_watch();
}

void begin_fill(const std::vector<uint64_t>& ids) {
  std::lock_guard lock(state().mutex);
  for (uint64_t id : ids) {
    state().unfilled.insert(id);
    auto& demanded = state().demanded;
    const bool pending = std::find(demanded.begin(), demanded.end(), id) != demanded.end();
    if (state().named.count(id) != 0 && !pending)
      demanded.push_back(id);  // a client that is gone was told: now this one
  }
  update_watch();
}

std::set<uint64_t> unfilled() {
  std::lock_guard lock(state().mutex);
  return state().unfilled;
}

std::vector<uint64_t> demands() {
  std::lock_guard lock(state().mutex);
  return std::exchange(state().demanded, {});
}

void filled(uint64_t id) {
  std::lock_guard lock(state().mutex);
  state().unfilled.erase(id);
  state().named.erase(id);
  std::erase(state().demanded, id);
  state().filled.notify_all();
  update_watch();
}

void begin_recording(uint64_t limit) {
  std::lock_guard lock(state().mutex);
  state().recording = {.on = true, .overflow = false, .limit = limit, .sequence = 0, .calls = {}};
  update_watch();
}

bool recorded(uint64_t from, size_t count, std::vector<Recorded>* out) {
  std::lock_guard lock(state().mutex);
  const auto& calls = state().recording.calls;
  for (size_t i = from; i < calls.size() && out->size() < count; ++i) out->push_back(calls[i]);
  return !state().recording.overflow;
}

void end_recording() {
  std::lock_guard lock(state().mutex);
  state().recording = {};
  update_watch();
}

void reset_watch_after_fork() {
  state();
  new (g_place) State;
}

}  // namespace ckpt::interposer
