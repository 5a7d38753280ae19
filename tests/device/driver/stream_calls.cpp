// Calls: streams, events, capture of streams into graphs.
#include <time.h>
#include <unistd.h>

#include <unordered_map>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

std::unordered_set<Event*>& events() {
  static auto& all = *new std::unordered_set<Event*>;
  return all;
}

double now_ms() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

}  // namespace

Event* event_of(CUevent handle) {
  std::lock_guard guard(lock());
  auto* event = reinterpret_cast<Event*>(handle);
  return events().contains(event) ? event : nullptr;
}

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

#define STREAM(handle)                \
  auto stream = stream_of(handle);    \
  if (stream == nullptr) return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE

CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  CKPT_STANDIN_ENTER();
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (out == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUstream>(stream_make(context, flags, priority).get());
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

CUresult cuStreamDestroy_v2(CUstream handle) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  if (stream == stream->context->standard) return CUDA_ERROR_INVALID_HANDLE;
  stream_end(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  if (stream->capture != nullptr) return stream->capture->broken = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  wait_for(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  if (stream->capture != nullptr) return stream->capture->broken = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return stream->progress->reached(stream->submitted) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// A call that tells one thing about a stream.
#define TELL(call, type, thing)               \
  CUresult call(CUstream handle, type* out) { \
    CKPT_STANDIN_ENTER();                     \
    STREAM(handle);                           \
    *out = thing;                             \
    return CUDA_SUCCESS;                      \
  }
TELL(cuStreamGetCtx, CUcontext, reinterpret_cast<CUcontext>(stream->context))
TELL(cuStreamGetFlags, unsigned, stream->flags)
TELL(cuStreamGetPriority, int, stream->priority)
TELL(cuStreamGetId, unsigned long long, stream->id)
TELL(cuStreamGetDevice, CUdevice, stream->context->device)
#undef TELL

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void* user_data, unsigned flags) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr) return stream->capture->broken = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return submit(stream, CU_GRAPH_NODE_TYPE_HOST, [=] { callback(handle, CUDA_SUCCESS, user_data); });
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void* user_data) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return submit(stream, CU_GRAPH_NODE_TYPE_HOST, [=] { fn(user_data); });
}

// --- Events

CUresult cuEventCreate(CUevent* out, unsigned flags) {
  CKPT_STANDIN_ENTER();
  if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  auto* made = new Event;
  made->flags = flags;
  events().insert(made);
  *out = reinterpret_cast<CUevent>(made);
  return CUDA_SUCCESS;
}

#define EVENT(handle)              \
  Event* event = event_of(handle); \
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE

CUresult cuEventDestroy_v2(CUevent handle) {
  CKPT_STANDIN_ENTER();
  EVENT(handle);
  std::lock_guard guard(lock());
  events().erase(event);
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream on) {
  CKPT_STANDIN_ENTER();
  EVENT(handle);
  STREAM(on);
  std::lock_guard guard(lock());
  if (stream->capture != nullptr) {
    event->capture = stream->capture;
    event->nodes = stream->last;
    return CUDA_SUCCESS;
  }
  event->capture = nullptr;
  auto when = event->when = std::make_shared<double>(0);
  std::tie(event->where, event->number) = submit_plain(stream, [when] { *when = now_ms(); });
  return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream on, unsigned) { return cuEventRecord(handle, on); }

CUresult cuEventQuery(CUevent handle) {
  CKPT_STANDIN_ENTER();
  EVENT(handle);
  if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  return event->where == nullptr || event->where->reached(event->number) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle) {
  CKPT_STANDIN_ENTER();
  EVENT(handle);
  if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
  Point point{event->where, event->number};
  if (point.first != nullptr) point.first->wait(point.second);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  CKPT_STANDIN_ENTER();
  Event *first = event_of(start), *last = event_of(end);
  if (first == nullptr || last == nullptr || first->where == nullptr || last->where == nullptr)
    return CUDA_ERROR_INVALID_HANDLE;
  if (((first->flags | last->flags) & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
  if (!first->where->reached(first->number) || !last->where->reached(last->number)) return CUDA_ERROR_NOT_READY;
  *milliseconds = static_cast<float>(*last->when - *first->when);
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent on, unsigned) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  EVENT(on);
  std::lock_guard guard(lock());
  if (event->capture != nullptr && event->capture->graph != nullptr) {
    if (stream->capture != nullptr && stream->capture != event->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (stream->capture == nullptr) stream->last.clear();
    stream->capture = event->capture;
    stream->capture->joined.insert(stream.get());
    for (Node* node : event->nodes) stream->last.push_back(node);
    return CUDA_SUCCESS;
  }
  if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (event->where != nullptr) submit_plain(stream, nullptr, {{event->where, event->number}});
  return CUDA_SUCCESS;
}

// --- Capture

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  static uint64_t id = 0;
  std::lock_guard guard(lock());
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (stream == stream->context->standard) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  stream->capture = std::make_shared<Capture>();
  stream->capture->graph = std::make_shared<Graph>();
  stream->capture->origin = stream.get();
  stream->capture->mode = mode;
  stream->capture->id = ++id;
  stream->capture->joined = {stream.get()};
  stream->last.clear();
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  std::lock_guard guard(lock());
  auto capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream.get()) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  for (const auto& each : stream->context->streams)
    if (each->capture == capture) each->capture = nullptr;
  if (capture->broken) return *out = nullptr, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *out = graph_adopt(std::move(capture->graph));
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  std::lock_guard guard(lock());
  *status = stream->capture == nullptr  ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->broken   ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                                   const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  CUresult result = cuStreamIsCapturing(handle, status);
  if (result != CUDA_SUCCESS || stream->capture == nullptr) return result;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream->capture->graph.get());
  if (nodes != nullptr) *nodes = reinterpret_cast<const CUgraphNode*>(stream->last.data());
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = stream->last.size();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                                   const CUgraphNode** nodes, size_t* count) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, graph, nodes, nullptr, count);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  CKPT_STANDIN_ENTER();
  static thread_local CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::swap(own, *mode);
  return CUDA_SUCCESS;
}

// --- Words in device memory

namespace {

template <class T>
CUresult write_value(const std::shared_ptr<Stream>& stream, CUdeviceptr address, T value) {
  if (!reachable(address, sizeof(T), 3)) return CUDA_ERROR_INVALID_VALUE;
  auto* at = reinterpret_cast<std::atomic<T>*>(is_device(address) ? shadow(address) : reinterpret_cast<char*>(address));
  return submit(stream, CU_GRAPH_NODE_TYPE_EMPTY, [=] { at->store(value); });
}

template <class T>
CUresult wait_value(const std::shared_ptr<Stream>& stream, CUdeviceptr address, T value, unsigned flags) {
  if (!reachable(address, sizeof(T), 1)) return CUDA_ERROR_INVALID_VALUE;
  auto* at = reinterpret_cast<std::atomic<T>*>(is_device(address) ? shadow(address) : reinterpret_cast<char*>(address));
  return submit(stream, CU_GRAPH_NODE_TYPE_EMPTY, [=] {
    for (;;) {
      T now = at->load();
      bool met = flags == CU_STREAM_WAIT_VALUE_EQ    ? now == value
                 : flags == CU_STREAM_WAIT_VALUE_AND ? (now & value) != 0
                 : flags == CU_STREAM_WAIT_VALUE_NOR ? static_cast<T>(~(now | value)) != 0
                                                     : static_cast<std::make_signed_t<T>>(now - value) >= 0;
      if (met) return;
      ::usleep(100);
    }
  });
}

}  // namespace

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr addr, uint32_t value, unsigned) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  return write_value(stream, addr, value);
}

CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr addr, uint64_t value, unsigned) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  return write_value(stream, addr, value);
}

CUresult cuStreamWaitValue32_v2(CUstream handle, CUdeviceptr addr, uint32_t value, unsigned flags) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  return wait_value(stream, addr, value, flags);
}

CUresult cuStreamWaitValue64_v2(CUstream handle, CUdeviceptr addr, uint64_t value, unsigned flags) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  return wait_value(stream, addr, value, flags);
}

CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned count, CUstreamBatchMemOpParams* params, unsigned) {
  CKPT_STANDIN_ENTER();
  STREAM(handle);
  for (unsigned i = 0; i < count; ++i) {
    auto& one = params[i].value;
    CUresult result = CUDA_SUCCESS;
    switch (params[i].operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        result = wait_value(stream, one.address, static_cast<uint32_t>(one.value64), one.flags);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64: result = wait_value(stream, one.address, one.value64, one.flags); break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        result = write_value(stream, one.address, static_cast<uint32_t>(one.value64));
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64: result = write_value(stream, one.address, one.value64); break;
      default: break;
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace ckpt::cuda::api
