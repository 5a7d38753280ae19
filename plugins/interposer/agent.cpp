#include "plugins/interposer/agent.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "plugins/interposer/agent_socket.h"
#include "plugins/interposer/allocations.h"
#include "plugins/interposer/contexts.h"
#include "plugins/interposer/api_lock.h"
#include "plugins/interposer/kernels.h"
#include "plugins/interposer/physical.h"
#include "plugins/interposer/thread.h"
#include "plugins/interposer/watch.h"

namespace ckpt::interposer {

namespace {

using agent::Message;
using agent::Status;
using agent::Type;

constexpr uint64_t kMaxTimeoutUs = 3'600'000'000, kHoldStepUs = 1'000;
constexpr size_t kStack = 256 << 10;

OwnFd g_listener, g_client;
std::atomic<bool> g_started{false}, g_ending{false};
std::atomic<bool> g_told{false};  ///< that there is no agent
std::atomic<uint32_t> g_word{0};  ///< while held: written by ckpt, into our memory

struct Reply {
  Message message;
  std::string payload;
  int fd = -1;  ///< closed once it is sent
  bool last = false;
};

template <class T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
bool full(const std::string& out) {
  return out.size() + sizeof(T) > agent::kMaxPayload;
}

bool client_gone() {
  pollfd peer = {g_client.get(), POLLRDHUP, 0};
  return g_client.get() < 0 ||
         (::poll(&peer, 1, 0) > 0 && (peer.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0);
}

Status status_of(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS: return Status::kDone;
    case CUDA_ERROR_NOT_FOUND: return Status::kNotFound;
    case CUDA_ERROR_NOT_SUPPORTED: return Status::kUnsupported;
    case CUDA_ERROR_NOT_MAPPED: return Status::kNotMapped;
    case CUDA_ERROR_OUT_OF_MEMORY: return Status::kNoRoom;
    case CUDA_ERROR_NOT_READY: return Status::kBusy;
    default: return Status::kDriver;
  }
}
void answer(Reply& reply, CUresult result) {
  reply.message.status = status_of(result);
  reply.message.driver_error = result;
}

uint64_t deadline(uint64_t timeout_us) { return now_ns() + std::min(timeout_us, kMaxTimeoutUs) * 1000; }

std::vector<uint64_t> ids_of(const std::string& payload) {
  std::vector<uint64_t> ids(payload.size() / sizeof(uint64_t));
  std::memcpy(ids.data(), payload.data(), ids.size() * sizeof(uint64_t));
  return ids;
}

std::vector<Bytes> ranges_of(const std::string& payload) {
  std::vector<Bytes> ranges(payload.size() / sizeof(agent::RangeReply));
  for (size_t i = 0; i < ranges.size(); ++i) {
    agent::RangeReply range;
    std::memcpy(&range, payload.data() + i * sizeof range, sizeof range);
    ranges[i] = {range.start, range.size};
  }
  return ranges;
}

uint32_t released_count() {
  const auto all = all_allocations();
  return static_cast<uint32_t>(std::count_if(all.begin(), all.end(), [](const Allocation& a) { return a.released; }));
}

void hello(Reply& reply) {
  agent::HelloReply about;
  about.pid = getpid();
  drv::cuDriverGetVersion(&about.driver_version);
  about.start_time = start_time();
  about.contexts = static_cast<uint32_t>(all_contexts().size());
  about.captures = captures_active();
  about.api_locked = api_locked();
  about.released = released_count();
  append(reply.payload, about);
}

void list_allocations(uint64_t from, Reply& reply) {
  const auto all = all_allocations();
  const auto waiting = unfilled();
  reply.message.a = all.size();
  for (size_t i = from; i < all.size() && !full<agent::AllocationReply>(reply.payload); ++i) {
    const Allocation& a = all[i];
    append(reply.payload, agent::AllocationReply{a.id, a.base, a.mapped, a.size, a.kind, a.device, a.released,
                                                 a.blank || waiting.count(a.id) != 0});
  }
}

/// A capture would make the waiting for its context an error, and its own error of that: so first it ends, then the
/// API is locked, unless another one has begun.
void close_for(uint64_t timeout_us, Reply& reply) {
  const uint64_t until = deadline(timeout_us);
  while (true) {
    while (captures_active()) {
      if (now_ns() > until || client_gone()) return answer(reply, CUDA_ERROR_NOT_READY);
      usleep(100);
    }
    if (api_locked() || !lock_api(until, client_gone))
      return answer(reply, api_locked() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
    if (!captures_active()) return;
    unlock_api();
  }
}

void release_all(const std::string& payload, Reply& reply) {
  for (uint64_t id : ids_of(payload)) {
    const CUresult result = release_memory(id);
    if (result != CUDA_SUCCESS) return answer(reply, result);
    ++reply.message.a;
  }
}

void list_saved(uint64_t from, bool missed_ones, Reply& reply) {
  std::vector<Saved> saved;
  std::vector<Bytes> missed;
  saved_so_far(&saved, &missed);
  reply.message.a = saved.size();
  reply.message.b = missed.size();
  if (missed_ones) {
    for (size_t i = from; i < missed.size() && !full<agent::RangeReply>(reply.payload); ++i) {
      append(reply.payload, agent::RangeReply{missed[i].start, missed[i].size});
    }
    return;
  }
  for (size_t i = from; i < saved.size() && !full<agent::SavedReply>(reply.payload); ++i) {
    append(
        reply.payload,
        agent::SavedReply{
            {saved[i].original.start, saved[i].original.size}, saved[i].buffer, saved[i].buffer_size, saved[i].offset});
  }
}

void list_recorded(uint64_t from, Reply& reply) {
  constexpr size_t kAtOnce = 64;
  std::vector<Recorded> calls;
  if (!recorded(from, kAtOnce, &calls)) return answer(reply, CUDA_ERROR_OUT_OF_MEMORY);
  for (const Recorded& call : calls) {
    std::string one;
    append(one, agent::RecordReply{call.sequence, static_cast<uint32_t>(call.access.reads.size()),
                                   static_cast<uint32_t>(call.access.writes.size()),
                                   static_cast<uint32_t>(call.access.record.size()), call.access.replayable,
                                   call.name.size()});
    for (const auto* ranges : {&call.access.reads, &call.access.writes}) {
      for (const Bytes& range : *ranges) append(one, agent::RangeReply{range.start, range.size});
    }
    one += call.access.record + call.name;
    if (one.size() > agent::kMaxPayload) return answer(reply, CUDA_ERROR_OUT_OF_MEMORY);
    if (reply.payload.size() + one.size() > agent::kMaxPayload) break;
    reply.payload += one;
    ++reply.message.a;
  }
}

void wait_for_demand(uint64_t timeout_us, Reply& reply) {
  const uint64_t until = deadline(std::min(timeout_us, agent::kMaxDemandWait));
  std::vector<uint64_t> ids = demands();
  for (; ids.empty() && now_ns() < until; ids = demands()) usleep(50);
  reply.payload.assign(reinterpret_cast<const char*>(ids.data()),
                       std::min(ids.size() * sizeof(uint64_t), agent::kMaxPayload / 8 * 8));
}

void device_uuid(uint64_t ordinal, Reply& reply) {
  CUuuid uuid{};
  const CUresult result = drv::cuDeviceGetUuid_v2(&uuid, static_cast<int>(ordinal));
  answer(reply, result == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_NOT_FOUND : result);
  reply.payload.assign(uuid.bytes, sizeof uuid.bytes);
}

void list_contexts(Reply& reply) {
  for (int32_t device : devices_of_contexts()) {
    if (!full<int32_t>(reply.payload)) append(reply.payload, device);
  }
}

void drain_for(uint64_t timeout_us, Reply& reply) {
  const CUresult result = captures_active() ? CUDA_ERROR_NOT_READY : drain(deadline(timeout_us), client_gone);
  if (result == CUDA_SUCCESS) free_deferred();  // not before: it waits for work, and knows no end
  answer(reply, result);
}

/// What the contract asks of the client, checked: changes of memory want a locked API.
bool wants_locked_api(Type type) {
  return type == Type::kDrain || type == Type::kRelease || type == Type::kAttach || type == Type::kHold ||
         type == Type::kBeginCow || type == Type::kWanted || type == Type::kBeginFill ||
         type == Type::kBeginRecording || type == Type::kReplay || type == Type::kRenew ||
         type == Type::kRenewAny;
}

Reply serve(const agent::Received& in) {
  Reply reply;
  const Message& request = in.message;
  reply.message.type = request.type;
  reply.message.sequence = request.sequence;
  if (request.magic != agent::kMagic || request.type >= Type::kCount) {
    reply.message.status = Status::kMalformed;
    return reply;
  }
  if (request.version != agent::kVersion) {
    reply.message.status = Status::kVersion;
    return reply;
  }
  if (g_ending.load() || (wants_locked_api(request.type) && !api_locked())) {
    reply.message.status = g_ending.load() ? Status::kNotFound : Status::kMalformed;
    return reply;
  }
  switch (request.type) {
    case Type::kHello: hello(reply); break;
    case Type::kDeviceUuid: device_uuid(request.a, reply); break;
    case Type::kAllocations: list_allocations(request.a, reply); break;
    case Type::kExport: answer(reply, export_fd(request.a, &reply.fd)); break;
    case Type::kLockApi: close_for(request.a, reply); break;
    case Type::kDrain: drain_for(request.a, reply); break;
    case Type::kUnlockApi:
      if (released_count() != 0) {
        answer(reply, CUDA_ERROR_NOT_MAPPED);
      } else {
        content_is_there();
        unlock_api();
      }
      break;
    case Type::kRelease: release_all(in.payload, reply); break;
    case Type::kAttach: answer(reply, attach_memory(request.a, in.fd)); break;
    case Type::kForget: drop_kept(); break;
    case Type::kHold:
      reply.last = true;
      g_word.store(0);
      reply.message.a = reinterpret_cast<uint64_t>(&g_word);
      break;
    case Type::kBeginCow: begin_cow(request.a); break;
    case Type::kWanted: want(ranges_of(in.payload)); break;
    case Type::kSaved: list_saved(request.a, false, reply); break;
    case Type::kMissed: list_saved(request.a, true, reply); break;
    case Type::kExportSaved: answer(reply, export_saved(request.a, &reply.fd)); break;
    case Type::kEndCow: end_cow(); break;
    case Type::kBeginFill: begin_fill(ids_of(in.payload)); break;
    case Type::kDemand: wait_for_demand(request.a, reply); break;
    case Type::kFilled: filled(request.a); break;
    case Type::kBeginRecording: begin_recording(request.a); break;
    case Type::kRecorded: list_recorded(request.a, reply); break;
    case Type::kEndRecording: end_recording(); break;
    case Type::kReplay: answer(reply, replay(in.payload)); break;
    case Type::kRenew:
    case Type::kRenewAny: answer(reply, renew_memory(request.a, request.type == Type::kRenewAny)); break;
    case Type::kContexts:
      list_contexts(reply);
      break;
    case Type::kCount: break;
  }
  return reply;
}

/// See agent_protocol.h: the program runs on, unless memory of it is nowhere to be had.
void clean_up_after_client() {
  g_client.close();
  if (g_ending.load()) return;  // `serve_clients` unlocks the API
  end_cow();
  end_recording();
  if (attach_kept()) unlock_api();
}

/// A program that has no descriptor left cannot look: that is no new life.
bool in_another_life(uint64_t life) {
  const uint64_t now = start_time();
  return now != 0 && life != 0 && now != life;
}

/// Without a socket, the API locked, until a new life, a word from ckpt, or the end of the lease.
void hold(uint64_t lease_ms) {
  const uint64_t life = start_time(), steps = std::min<uint64_t>(lease_ms, kMaxTimeoutUs / 1000) * 1000 / kHoldStepUs;
  uint32_t word = 0;
  for (uint64_t step = 0; step < steps && !in_another_life(life) && !g_ending.load(); ++step) {
    const uint32_t now = g_word.load();
    if (now == agent::kWoken) break;
    if (std::exchange(word, now) != now) step = 0;  // the lease is renewed
    usleep(kHoldStepUs);
  }
  const auto all = all_allocations();
  if (std::none_of(all.begin(), all.end(), [](const Allocation& a) { return a.released || a.blank; })) unlock_api();
}

/// False: the conversation is over.
bool converse() {
  agent::Received in;
  if (!receive(g_client.get(), &in)) return false;
  Reply reply = serve(in);
  if (in.fd >= 0) ::close(in.fd);
  const bool sent = send(g_client.get(), reply.message, reply.payload, reply.fd);
  if (reply.fd >= 0) ::close(reply.fd);
  if (!sent || !reply.last) return sent;
  // The client is there to take over; it goes on when its socket has ended.
  end_cow();
  end_recording();
  drop_kept();
  g_listener.close();
  remove_socket_file();
  g_client.close();
  hold(in.message.a);
  return true;
}

void* serve_clients(void*) {
  CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  drv::cuThreadExchangeStreamCaptureMode(&relaxed);  // or calls of ours spoil captures of the program's
  while (!g_ending.load() || g_client.get() >= 0) {
    if (g_listener.get() < 0 && !listen_for_clients(&g_listener)) {
      usleep(1'000'000);  // no descriptor left, a folder that is gone: again later
      continue;
    }
    // A second client waits in the listener's queue.
    const bool talking = g_client.get() >= 0;
    pollfd what = {talking ? g_client.get() : g_listener.get(), POLLIN, 0};
    if (::poll(&what, 1, -1) < 0 && errno != EINTR) continue;
    if (talking) {
      if (what.revents != 0 && !converse()) clean_up_after_client();
    } else if (what.revents != 0 && accept_client(g_listener, &g_client) == Accepted::kBroken) {
      g_listener.close();
    }
  }
  unlock_api();  // nobody would any more, and what the program still calls while it ends waits there
  return nullptr;
}

/// The agent's thread is the parent's, and so is all that it knew.
void begin_anew_in_child() {
  g_listener.close();
  g_client.close();
  g_started.store(false);
  reset_api_lock_after_fork();
  reset_allocations_after_fork();
  reset_contexts_after_fork();
  reset_watch_after_fork();
  reset_physical_after_fork();
  reset_kernels_after_fork();
}

/// From here on the driver takes itself down.
__attribute__((destructor)) void end_with_program() {
  g_ending.store(true);
  remove_socket_file();
}

}  // namespace

void start_agent() {
  if (g_started.exchange(true)) return;
  static std::atomic<bool> registered{false};
  if (!registered.exchange(true)) pthread_atfork(nullptr, nullptr, begin_anew_in_child);
  listen_for_clients(&g_listener);  // here: whoever sees that the program has CUDA can talk to it
  const int failed = start_thread(serve_clients, kStack, "ckpt-agent");
  if (failed == 0) return;
  g_listener.close();
  remove_socket_file();
  if (!g_told.exchange(true))
    dprintf(STDERR_FILENO,
            "ckpt run: process %d has no agent (no thread for it: %s): its GPU memory is not pre-copied\n", getpid(),
            std::strerror(failed));
  g_started.store(false);
}

}  // namespace ckpt::interposer
