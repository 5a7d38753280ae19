#include "plugins/interposer/contexts.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>

#include "plugins/interposer/allocations.h"
#include "plugins/interposer/thread.h"

namespace ckpt::interposer {

namespace {

struct Context {
  CUcontext handle;
  int device;
  bool primary;
};

struct State {
  std::mutex mutex;
  std::vector<Context> contexts;
  std::vector<CUstream> capturing;
  std::atomic<int> captures{0};
  std::atomic<int> drain_result{0};
  std::atomic<bool> draining{false};
};
alignas(State) unsigned char g_place[sizeof(State)];
State& state() {
  static State* made = new (g_place) State;
  return *made;
}

/// 0, 1 and 2 stand for streams that no call about captures can name from another thread.
bool nameable(CUstream stream) { return reinterpret_cast<uintptr_t>(stream) > 2; }

CUresult synchronize_all() {
  for (CUcontext context : all_contexts()) {
    InContext scope(context);
    if (!scope) {
      context_ended(context);
      continue;
    }
    if (const CUresult result = drv::cuCtxSynchronize(); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void* drainer(void*) {
  state().drain_result.store(synchronize_all());
  state().draining.store(false);
  return nullptr;
}

}  // namespace

void context_made(CUcontext context, int device, bool primary) {
  std::lock_guard lock(state().mutex);
  auto& all = state().contexts;
  if (std::none_of(all.begin(), all.end(), [&](const Context& c) { return c.handle == context; }))
    all.push_back({context, device, primary});
}

void context_seen(CUcontext context, int device) {
  {
    std::lock_guard lock(state().mutex);
    for (const Context& known : state().contexts) {
      if (known.handle == context) return;
    }
  }
  unsigned flags = 0;
  int active = 0;
  CUcontext primary = nullptr;
  if (drv::cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0 &&
      drv::cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS) {
    drv::cuDevicePrimaryCtxRelease_v2(device);
  }
  context_made(context, device, primary == context);
}

void context_ended(CUcontext context) {
  std::lock_guard lock(state().mutex);
  std::erase_if(state().contexts, [&](const Context& c) { return c.handle == context; });
}

CUcontext primary_context(int device) {
  std::lock_guard lock(state().mutex);
  for (const Context& context : state().contexts) {
    if (context.primary && context.device == device) return context.handle;
  }
  return nullptr;
}

std::vector<CUcontext> all_contexts() {
  std::lock_guard lock(state().mutex);
  std::vector<CUcontext> all;
  for (const Context& context : state().contexts) all.push_back(context.handle);
  return all;
}

std::vector<int> devices_of_contexts() {
  std::lock_guard lock(state().mutex);
  std::vector<int> all;
  for (const Context& context : state().contexts) all.push_back(context.device);
  return all;
}

void capture_began(CUstream stream) {
  std::lock_guard lock(state().mutex);
  state().capturing.push_back(stream);
  state().captures.store(static_cast<int>(state().capturing.size()));
}

void capture_ended(CUstream stream) {
  if (state().captures.load() == 0) return;
  std::lock_guard lock(state().mutex);
  auto& all = state().capturing;
  if (auto at = std::find(all.begin(), all.end(), stream); at != all.end()) all.erase(at);
  state().captures.store(static_cast<int>(all.size()));
}

bool captures_active() {
  if (state().captures.load() == 0) return false;
  std::lock_guard lock(state().mutex);
  std::erase_if(state().capturing, [](CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return nameable(stream) &&
           (drv::cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE);
  });
  state().captures.store(static_cast<int>(state().capturing.size()));
  return !state().capturing.empty();
}

CUresult drain(uint64_t deadline_ns, GiveUp give_up) {
  // One that still waits from an earlier call may have begun before the newest work was submitted: another one follows
  // it.
  for (bool fresh = false; !fresh;) {
    fresh = !state().draining.exchange(true);
    if (fresh && start_thread(drainer, 0, nullptr) != 0) {
      state().draining.store(false);
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    while (state().draining.load()) {
      if (now_ns() > deadline_ns || give_up()) return CUDA_ERROR_NOT_READY;
      usleep(20);
    }
  }
  return static_cast<CUresult>(state().drain_result.load());
}

void reset_contexts_after_fork() {
  state();
  new (g_place) State;
}

}  // namespace ckpt::interposer
