#include "plugins/cuda/agent_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/text.h"
#include "plugins/cuda/agent_address.h"
#include "plugins/cuda/agent_message.h"
#include "plugins/cuda/agent_replies.h"
#include "plugins/cuda/uuid.h"

namespace ckpt::cuda {

namespace {

using agent::Message;
using agent::Status;
using agent::Type;

constexpr uint64_t kWayUs = 5'000'000;  ///< for a request that takes the agent no time, on a machine that is busy
constexpr uint64_t kMaxEntries = 1 << 22;  ///< of a listing: a target that goes on and on is not believed

std::string_view bytes_of(const std::vector<uint64_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint64_t)};
}

device::MemoryKind kind_of(agent::Kind kind) {
  switch (kind) {
    case agent::Kind::kOwned: return device::MemoryKind::kOwned;
    case agent::Kind::kPinned: return device::MemoryKind::kPinned;
    default: return device::MemoryKind::kNative;
  }
}

Result<void> wait_for(int socket, short events, uint64_t timeout_us, const std::string& subject) {
  const uint64_t until = monotonic_us() + timeout_us;
  while (true) {
    const uint64_t now = monotonic_us();
    pollfd what = {socket, events, 0};
    const int ready =
        ::poll(&what, 1, now >= until ? 0 : static_cast<int>(std::min<uint64_t>((until - now) / 1000 + 1, 1 << 30)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return sys_error(subject, "cannot wait for its agent");
    if (ready == 0 && monotonic_us() >= until) return fail(Code::kBusy, subject, "its agent does not answer");
  }
}

}  // namespace

std::string AgentTarget::subject() const { return fmt::format("process {}", pid_); }

Result<std::unique_ptr<AgentTarget>> AgentTarget::connect(int pid, uint64_t timeout_us) {
  CKPT_TRY_ASSIGN(UniqueFd socket, connect_to_agent(pid));
  std::unique_ptr<AgentTarget> target(new AgentTarget(pid, std::move(socket)));
  // Another client's conversation comes first: its turn is over when it has gone.
  auto reply = target->ask(Type::kHello, 0, {}, -1, timeout_us);
  if (!reply && reply.error().code == Code::kBusy)
    return fail(Code::kBusy, target->subject(), "its agent is talking to another ckpt, or stands still");
  if (!reply) return std::move(reply).error();
  return target;
}

Result<void> AgentTarget::send(const Message& message, std::string_view payload, int fd) {
  if (!socket_) return fail(Code::kNotFound, subject(), "the conversation with its agent is over");
  if (payload.size() > agent::kMaxPayload)
    return fail(Code::kUsage, subject(), "too much for one request to its agent");
  while (agent::send_message(socket_.get(), message, payload, fd) < 0) {
    if (errno == EAGAIN) {
      CKPT_TRY(wait_for(socket_.get(), POLLOUT, kWayUs, subject()));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return fail(Code::kNotFound, subject(), "has ended");
    } else if (errno != EINTR) {
      return sys_error(subject(), "cannot write to its agent");
    }
  }
  return {};
}

Result<AgentTarget::Reply> AgentTarget::receive(uint32_t sequence, uint64_t timeout_us) {
  const uint64_t until = monotonic_us() + timeout_us;
  while (true) {
    const uint64_t now = monotonic_us();
    CKPT_TRY(wait_for(socket_.get(), POLLIN, now >= until ? 0 : until - now, subject()));
    agent::Received in;
    const ssize_t got = agent::receive_message(socket_.get(), &in);
    UniqueFd fd(in.fd);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return fail(Code::kNotFound, subject(), "has ended");
    if (got < 0) return sys_error(subject(), "cannot read from its agent");
    if (!in.whole || in.message.magic != agent::kMagic)
      return fail(Code::kIo, subject(), "its agent's answer is damaged");
    if (in.message.sequence == sequence)
      return Reply{in.message, std::move(in.payload), std::move(fd)};  // else of a request that was given up
  }
}

Error AgentTarget::refusal(const Message& reply) const {
  const std::string what = fmt::format("its agent: request {}", static_cast<uint32_t>(reply.type));
  switch (reply.status) {
    case Status::kBusy: return Error(Code::kBusy, subject(), what + " was not done within the time");
    case Status::kNotFound:
      return Error(Code::kNotFound, subject(), what + ": there is no such thing, or the program is ending");
    case Status::kUnsupported: return Error(Code::kUnsupported, subject(), what + ": that memory is not the agent's");
    case Status::kNotMapped:
      return Error(Code::kBusy, subject(), what + ": memory of it has been taken away and not put back");
    case Status::kNoRoom:
      return Error(Code::kNoRoom, subject(), what + ": not enough device memory, or more than the limit");
    case Status::kVersion: return Error(Code::kUnsupported, subject(), "was started by another version of ckpt");
    case Status::kMalformed: return Error(Code::kBug, subject(), what + " was refused as wrong");
    default: return Error(Code::kIo, subject(), fmt::format("{}: the driver says {}", what, reply.driver_error));
  }
}

Result<AgentTarget::Reply> AgentTarget::ask(Type type, uint64_t a, std::string_view payload, int fd,
                                            uint64_t timeout_us) {
  std::lock_guard lock(mutex_);
  Message message;
  message.type = type;
  message.sequence = ++sequence_;
  message.a = a;
  CKPT_TRY(send(message, payload, fd));
  const uint64_t patience = timeout_us > UINT64_MAX - kWayUs ? UINT64_MAX : timeout_us + kWayUs;
  CKPT_TRY_ASSIGN(Reply reply, receive(message.sequence, std::min<uint64_t>(patience, 1ull << 50)));
  if (reply.message.status != Status::kDone) return refusal(reply.message);
  return reply;
}

Result<void> AgentTarget::tell(Type type, uint64_t a, std::string_view payload, int fd, uint64_t timeout_us) {
  auto reply = ask(type, a, payload, fd, timeout_us);
  if (!reply) return std::move(reply).error();
  return {};
}

Error AgentTarget::about_this(Error error) const {
  error.subject = subject();
  return error;
}

Result<agent::HelloReply> AgentTarget::hello() {
  CKPT_TRY_ASSIGN(Reply reply, ask(Type::kHello));
  auto about = parse_hello(reply.payload);
  return about ? std::move(about) : about_this(about.error());
}

template <class T, class Parse>
Result<std::vector<T>> AgentTarget::list(Type type, Parse parse, uint64_t limit) {
  std::vector<T> all;
  while (true) {
    CKPT_TRY_ASSIGN(Reply reply, ask(type, all.size()));
    auto some = parse(reply.payload);
    if (!some) return about_this(some.error());
    if (some->empty()) return all;
    if (some->size() > limit - all.size())
      return Error(Code::kNoRoom, subject(), "its agent lists more than there can be");
    all.insert(all.end(), std::make_move_iterator(some->begin()), std::make_move_iterator(some->end()));
  }
}

Result<std::string> AgentTarget::device_uuid(int device) {
  CKPT_TRY_ASSIGN(Reply reply, ask(Type::kDeviceUuid, static_cast<uint64_t>(device)));
  if (reply.payload.size() != sizeof(api::CUuuid)) return fail(Code::kIo, subject(), "its agent's answer is damaged");
  api::CUuuid uuid;
  std::memcpy(uuid.bytes, reply.payload.data(), sizeof uuid.bytes);
  return uuid_text(uuid);
}

Result<std::vector<agent::AllocationReply>> AgentTarget::listing() {
  return list<agent::AllocationReply>(Type::kAllocations, parse_allocations, kMaxEntries);
}

Result<std::vector<device::Allocation>> AgentTarget::allocations() {
  CKPT_TRY_ASSIGN(const auto entries, listing());
  std::vector<device::Allocation> all;
  for (const agent::AllocationReply& e : entries)
    all.push_back({.id = e.id,
                   .address = {e.address},
                   .size = e.size,
                   .device = e.device,
                   .kind = kind_of(e.kind),
                   .released = e.released != 0});
  return all;
}

/// The first two are unsupported by the driver up to 580 at least; IPC from 610 on only for programs that its own
/// launcher started.
Result<std::vector<std::string>> AgentTarget::hazards() {
  CKPT_TRY_ASSIGN(const auto entries, listing());
  std::vector<std::string> out;
  auto add = [&](auto is_one, const char* what, const char* why) {
    uint64_t count = 0, bytes = 0;
    for (const agent::AllocationReply& e : entries) {
      if (is_one(e)) ++count, bytes += e.size;
    }
    if (count != 0)
      out.push_back(
          fmt::format("{} ({} allocation{}, {}), {}", what, count, count == 1 ? "" : "s", human_bytes(bytes), why));
  };
  auto of = [](agent::Kind kind) { return [kind](const agent::AllocationReply& e) { return e.kind == kind; }; };
  add(of(agent::Kind::kManaged), "managed memory", "which the driver cannot checkpoint");
  add(of(agent::Kind::kForeign), "memory of another process by CUDA IPC", "which the driver cannot checkpoint");
  add(of(agent::Kind::kImported), "memory of another process by a shareable handle (symmetric memory, NVSHMEM)",
      "which the driver cannot checkpoint");
  add([](const agent::AllocationReply& e) { return e.unfilled != 0; }, "device memory without its content",
      "since a restore has ended before it had filled all");
  add([](const agent::AllocationReply& e) { return e.released != 0; }, "device memory that was taken away",
      "since a ckpt has ended before it had put it back");
  return out;
}

Result<UniqueFd> AgentTarget::export_allocation(uint64_t id) {
  CKPT_TRY_ASSIGN(Reply reply, ask(Type::kExport, id));
  if (!reply.fd) return fail(Code::kIo, subject(), "its agent sent no descriptor");
  return std::move(reply.fd);
}

Result<void> AgentTarget::lock_api(uint64_t timeout_us) {
  return tell(Type::kLockApi, timeout_us, {}, -1, timeout_us);
}
Result<void> AgentTarget::drain(uint64_t timeout_us) { return tell(Type::kDrain, timeout_us, {}, -1, timeout_us); }
Result<void> AgentTarget::unlock_api() { return tell(Type::kUnlockApi); }

Result<void> AgentTarget::begin_cow(uint64_t budget, const std::vector<device::Range>& wanted) {
  CKPT_TRY(tell(Type::kBeginCow, budget));
  constexpr size_t kAtOnce = agent::kMaxPayload / sizeof(agent::RangeReply);
  for (size_t from = 0; from < wanted.size(); from += kAtOnce) {
    std::vector<agent::RangeReply> some;
    for (size_t i = from; i < std::min(wanted.size(), from + kAtOnce); ++i)
      some.push_back({wanted[i].start.value, wanted[i].size});
    CKPT_TRY(tell(Type::kWanted, 0, {reinterpret_cast<const char*>(some.data()), some.size() * sizeof some[0]}));
  }
  return {};
}
Result<void> AgentTarget::end_cow() { return tell(Type::kEndCow); }

Result<device::SavedTable> AgentTarget::saved(uint64_t) {
  // Every copy is complete before its call goes on: there is nothing to wait for. While calls go on both lists grow, at
  // their ends.
  device::SavedTable table;
  CKPT_TRY_ASSIGN(table.saved, list<device::SavedRange>(Type::kSaved, parse_saved, kMaxEntries));
  CKPT_TRY_ASSIGN(table.missed, list<device::Range>(Type::kMissed, parse_ranges, kMaxEntries));
  return table;
}

Result<UniqueFd> AgentTarget::export_saved(uint64_t buffer) {
  CKPT_TRY_ASSIGN(Reply reply, ask(Type::kExportSaved, buffer));
  if (!reply.fd) return fail(Code::kIo, subject(), "its agent sent no descriptor");
  return std::move(reply.fd);
}

Result<void> AgentTarget::release(uint64_t id) { return tell(Type::kRelease, 0, bytes_of({id})); }
Result<void> AgentTarget::attach(uint64_t id, int fd) { return tell(Type::kAttach, id, {}, fd); }
Result<void> AgentTarget::forget() { return tell(Type::kForget); }

Result<void> AgentTarget::hold(uint64_t lease_us) {
  CKPT_TRY_ASSIGN(const Reply reply, ask(Type::kHold, lease_us / 1000));
  wake_address_ = reply.message.a;
  CKPT_TRY(wait_for(socket_.get(), POLLIN, kWayUs, subject()));  // its end is closed
  socket_.reset();
  return {};
}

Result<void> AgentTarget::renew(uint64_t id, device::Renew which) {
  return tell(which == device::Renew::kAny ? Type::kRenewAny : Type::kRenew, id);
}

void AgentTarget::write_word(uint32_t word) const {
  iovec here{&word, sizeof word}, there{reinterpret_cast<void*>(wake_address_), sizeof word};
  if (wake_address_ != 0) (void)::process_vm_writev(pid_, &here, 1, &there, 1, 0);
}

void AgentTarget::renew_lease() {
  renewals_ = renewals_ + 1 == agent::kWoken ? 1 : renewals_ + 1;
  write_word(renewals_);
}

Result<std::vector<int>> AgentTarget::contexts() {
  CKPT_TRY_ASSIGN(const Reply reply, ask(Type::kContexts));
  std::vector<int32_t> devices(reply.payload.size() / sizeof(int32_t));
  std::memcpy(devices.data(), reply.payload.data(), devices.size() * sizeof(int32_t));
  return std::vector<int>(devices.begin(), devices.end());
}

Result<void> AgentTarget::wake() {
  if (socket_ && hello()) return {};  // it was never held
  write_word(agent::kWoken);
  CKPT_TRY_ASSIGN(std::unique_ptr<AgentTarget> again, connect(pid_, kWayUs));
  std::lock_guard lock(mutex_);
  socket_ = std::move(again->socket_), sequence_ = again->sequence_;
  return {};
}

Result<void> AgentTarget::begin_fill(const std::vector<uint64_t>& ids) {
  constexpr size_t kAtOnce = agent::kMaxPayload / sizeof(uint64_t);
  for (size_t from = 0; from < ids.size(); from += kAtOnce) {
    const std::vector<uint64_t> some(ids.begin() + from, ids.begin() + std::min(ids.size(), from + kAtOnce));
    CKPT_TRY(tell(Type::kBeginFill, 0, bytes_of(some)));
  }
  return {};
}

Result<std::optional<std::vector<uint64_t>>> AgentTarget::next_demand(uint64_t timeout_us) {
  // In short pieces: another thread of ours says `filled` in between.
  const uint64_t until = monotonic_us() + std::min<uint64_t>(timeout_us, 1ull << 50);
  while (true) {
    const uint64_t now = monotonic_us();
    const uint64_t piece = now >= until ? 0 : std::min(until - now, agent::kMaxDemandWait);
    CKPT_TRY_ASSIGN(Reply reply, ask(Type::kDemand, piece));
    auto ids = parse_ids(reply.payload);
    if (!ids) return about_this(ids.error());
    if (!ids->empty()) return std::optional(std::move(*ids));
    if (piece == 0) return std::optional<std::vector<uint64_t>>{};
  }
}

Result<void> AgentTarget::filled(uint64_t id) { return tell(Type::kFilled, id); }

Result<void> AgentTarget::begin_recording(uint64_t limit) {
  recording_limit_ = limit;
  return tell(Type::kBeginRecording, limit);
}
Result<void> AgentTarget::end_recording() { return tell(Type::kEndRecording); }

Result<std::vector<device::Launch>> AgentTarget::recorded() {
  return list<device::Launch>(Type::kRecorded, parse_recorded, recording_limit_);
}

Result<void> AgentTarget::replay(const device::Launch& launch) { return tell(Type::kReplay, 0, launch.record); }

}  // namespace ckpt::cuda
