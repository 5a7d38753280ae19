// Streams as threads, and events; beneath the calls.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

thread_local bool per_thread_default = false;

namespace {

/// Addresses that submitted work touches, one for each piece of work.
std::mutex touched_mutex;
std::multiset<uint64_t>& touched() {
  static auto& all = *new std::multiset<uint64_t>;
  return all;
}

void touch(const std::vector<uint64_t>& addresses) {
  std::lock_guard hold(touched_mutex);
  touched().insert(addresses.begin(), addresses.end());
}

void untouch(const std::vector<uint64_t>& addresses) {
  std::lock_guard hold(touched_mutex);
  for (uint64_t address : addresses) touched().erase(touched().find(address));
}

}  // namespace

bool in_use(uint64_t address, size_t size) {
  std::lock_guard hold(touched_mutex);
  auto found = touched().lower_bound(address);
  return found != touched().end() && *found < address + size;
}

void Progress::wait(uint64_t number) {
  std::unique_lock hold(mutex);
  moved.wait(hold, [&] { return done >= number; });
}

bool Progress::reached(uint64_t number) {
  std::lock_guard hold(mutex);
  return done >= number;
}

namespace {

/// The thread of a stream. It owns the stream until that ends.
void serve(std::shared_ptr<Stream> stream) {
  ::pthread_setname_np(::pthread_self(), "standin-stream");
  Progress& progress = *stream->progress;
  std::unique_lock hold(progress.mutex);
  for (;;) {
    stream->wanted.wait(hold, [&] { return !stream->queue.empty() || stream->ending; });
    if (stream->queue.empty()) return;
    Stream::Item item = std::move(stream->queue.front());
    stream->queue.pop_front();
    hold.unlock();
    for (auto& [other, number] : item.after) other->wait(number);
    if (settings().seed != 0) ::usleep(static_cast<useconds_t>(stream->dawdle() % (settings().delay_us + 1)));
    if (item.work) item.work();
    untouch(item.touches);
    item = {};
    hold.lock();
    ++progress.done;
    progress.moved.notify_all();
    pending_work.fetch_sub(1);
  }
}

Point point_of(const std::shared_ptr<Stream>& stream) { return {stream->progress, stream->submitted}; }

bool blocking(const Stream& stream) { return (stream.flags & CU_STREAM_NON_BLOCKING) == 0; }

/// The first kind of synchronisation there is: the standard stream waits for the others, and they for it.
std::vector<Point> standard_order(const std::shared_ptr<Stream>& stream) {
  std::vector<Point> after;
  Context& context = *stream->context;
  if (stream == context.standard) {
    for (const auto& other : context.streams)
      if (other != stream && blocking(*other) && other->submitted > 0) after.push_back(point_of(other));
  } else if (blocking(*stream) && context.standard->submitted > 0) {
    after.push_back(point_of(context.standard));
  }
  return after;
}

thread_local std::map<uint64_t, std::weak_ptr<Stream>> own_streams;  ///< of this thread, by context

std::shared_ptr<Stream> thread_stream(Context* context) {
  auto& own = own_streams[context->id];
  auto stream = own.lock();
  if (stream == nullptr) own = stream = stream_make(context, 0, 0);
  return stream;
}

}  // namespace

std::shared_ptr<Stream> stream_make(Context* context, unsigned flags, int priority) {
  static uint64_t id = 0;
  std::lock_guard guard(lock());
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = ++id;
  stream->dawdle.seed(static_cast<unsigned>(settings().seed + stream->id));
  context->streams.insert(stream);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(serve, stream).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return stream;
}

void stream_end(const std::shared_ptr<Stream>& stream) {
  wait_for(stream);
  {
    std::lock_guard hold(stream->progress->mutex);
    stream->ending = true;
    stream->wanted.notify_all();
  }
  std::lock_guard guard(lock());
  stream->context->streams.erase(stream);
}

std::shared_ptr<Stream> stream_of(CUstream handle) {
  std::lock_guard guard(lock());
  Context* context = current_context();
  if (handle == nullptr || handle == kStreamLegacy || handle == kStreamPerThread) {
    if (context == nullptr) return nullptr;
    bool own = handle == kStreamPerThread || (handle == nullptr && per_thread_default);
    return own ? thread_stream(context) : context->standard;
  }
  auto* wanted = reinterpret_cast<Stream*>(handle);
  // Any context's: a stream may be waited for whatever is current.
  for (int device = 0; device < settings().gpus; ++device)
    for (Context* each : contexts_on(device))
      for (const auto& stream : each->streams)
        if (stream.get() == wanted) return stream;
  return nullptr;
}

Point submit_plain(const std::shared_ptr<Stream>& stream, Work work, std::vector<Point> after,
                   std::vector<uint64_t> touches) {
  std::lock_guard guard(lock());
  for (Point& point : standard_order(stream)) after.push_back(std::move(point));
  pending_work.fetch_add(1);
  touch(touches);
  std::lock_guard hold(stream->progress->mutex);
  stream->queue.push_back({std::move(work), std::move(after), std::move(touches)});
  ++stream->submitted;
  stream->wanted.notify_one();
  return point_of(stream);
}

CUresult submit(const std::shared_ptr<Stream>& stream, CUgraphNodeType type, Work work, std::vector<uint64_t> touches,
                std::shared_ptr<CUDA_KERNEL_NODE_PARAMS> params) {
  std::lock_guard guard(lock());
  if (stream->capture != nullptr) {
    if (stream->capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    Node* node = stream->capture->graph->add(type, std::move(work), stream->last);
    node->params = std::move(params);
    stream->last = {node};
    return CUDA_SUCCESS;
  }
  if (stream == stream->context->standard) {
    for (const auto& other : stream->context->streams) {
      if (other->capture == nullptr || !blocking(*other)) continue;
      other->capture->broken = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  submit_plain(stream, std::move(work), {}, std::move(touches));
  return CUDA_SUCCESS;
}

void wait_for(const std::shared_ptr<Stream>& stream) { stream->progress->wait(stream->submitted); }

void wait_for_all(Context* context) {
  std::vector<Point> points;
  {
    std::lock_guard guard(lock());
    for (const auto& stream : context->streams) points.push_back(point_of(stream));
  }
  for (auto& [progress, number] : points) progress->wait(number);
}

bool idle(Context* context) {
  std::lock_guard guard(lock());
  for (const auto& stream : context->streams)
    if (!stream->progress->reached(stream->submitted)) return false;
  return true;
}

CUresult forbidden_in_capture() {
  Context* context = current_context();
  if (context == nullptr) return CUDA_SUCCESS;
  std::lock_guard guard(lock());
  for (const auto& stream : context->streams) {
    if (stream->capture == nullptr || stream->capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    stream->capture->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace ckpt::standin
