#include "lib/flash/agent.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/io.h"
#include "lib/flash/agent_loop.h"

namespace ckpt::flash {

namespace {

constexpr size_t kMostConnections = 8192;

}  // namespace

Result<AgentEnd> Agent::run(const std::function<void()>& ready) {
  std::vector<std::filesystem::path> made;
  CKPT_TRY(io::make_folders(options_.directory, made));
  CKPT_TRY(listener_.open(options_.directory.string(), options_.socket));
  CKPT_TRY(background_.open());
  // Delivered in ppoll alone: none is lost between a look at the flag and the wait.
  sigset_t blocked;
  sigemptyset(&blocked);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &waiting_mask_);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigdelset(&waiting_mask_, signal);
  ready();
  for (;;) {
    while (!stop_.requested() && !(lonely() && !persister_.is_working())) CKPT_TRY(turn(timeout_ms()));
    CKPT_TRY_ASSIGN(const AgentEnd end, last_words());
    if (stop_.requested() || lonely()) return end;  // else somebody has come meanwhile
  }
}

Result<void> Agent::turn(int timeout) {
  std::vector<pollfd> wait = {{listener_.fd(), POLLIN, 0}, {background_.fd(), POLLIN, 0}};
  std::vector<std::shared_ptr<Connection>> order(connections_.begin(), connections_.end());
  for (const auto& connection : order) {
    wait.push_back({connection->socket.get(), POLLIN, 0});
    wait.push_back({connection->process.get(), POLLIN, 0});
  }
  const timespec limit = timespec_of(static_cast<uint64_t>(std::max(0, timeout)) * 1'000'000);
  const int ready = ::ppoll(wait.data(), wait.size(), timeout < 0 ? nullptr : &limit, &waiting_mask_);
  if (ready < 0 && errno != EINTR) return sys_error("poll", "cannot wait");
  if (ready > 0) {
    if (wait[1].revents != 0) background_.take_results();
    for (size_t i = 0; i < order.size(); ++i) {
      if (wait[2 + 2 * i].revents != 0) receive(order[i]);
      if (wait[3 + 2 * i].revents != 0 && !order[i]->gone) leave(order[i]);
    }
    if (wait[0].revents != 0) welcome();
  }
  connections_.remove_if([](const auto& connection) { return connection->gone; });
  persister_.work();  // what is wanted is held before a save that waits could be granted its buffer
  retry_begins();
  return {};
}

int Agent::timeout_ms() const {
  uint64_t next = UINT64_MAX;
  for (const WaitingBegin& waiting : begins_) next = std::min(next, waiting.deadline_us);
  if (options_.linger_ms > 0 && present().empty()) next = std::min(next, lonely_since_ + linger_us());
  next = std::min(next, persister_.next_look_us().value_or(UINT64_MAX));
  if (next == UINT64_MAX) return -1;
  const uint64_t now = monotonic_us();
  return next <= now ? 0 : static_cast<int>(std::min<uint64_t>((next - now) / 1000 + 1, 1 << 30));
}

std::set<uint32_t> Agent::present() const {
  std::set<uint32_t> out;
  for (const auto& connection : connections_) {
    if (connection->rank && !connection->copies && !connection->gone) out.insert(*connection->rank);
  }
  return out;
}

bool Agent::lonely() const {
  return options_.linger_ms > 0 && present().empty() && monotonic_us() >= lonely_since_ + linger_us();
}

uint64_t Agent::linger_us() const {
  return (ended_.size() >= ledger_.expected() && !ended_.empty() ? std::min<uint64_t>(options_.linger_ms, 1000)
                                                                 : options_.linger_ms) *
         1000;
}

void Agent::welcome() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    auto connection = std::make_shared<Connection>();
    connection->number = ++connections_made_;
    if (!is_trusted_peer(socket.get(), &connection->pid)) {
      tell_("a stranger's connection was refused");
      continue;
    }
    // A child of the trainer may hold its end of the socket: only the process itself says when it has ended. One that
    // is in another pid namespace is known by its connection alone.
    if (connection->pid > 0) connection->process.reset(static_cast<int>(::syscall(SYS_pidfd_open, connection->pid, 0)));
    if (connections_.size() >= kMostConnections) continue;
    connection->socket = std::move(socket);
    connections_.push_back(std::move(connection));
  }
}

void Agent::receive(const std::shared_ptr<Connection>& from) {
  // A few in one go, so that nobody keeps the others waiting.
  for (int i = 0; i < 16 && !from->gone; ++i) {
    auto message = receive_request(from->socket.get());
    if (!message) {
      if (answers_no(message.error().code) || message.error().code == Code::kUnsupported)
        tell_(fmt::format("process {}: {}; its connection was closed", from->pid, message.error().text()));
      if (message.error().code == Code::kUnsupported) {
        Reply reply;
        reply.status = exit_code(Code::kUnsupported);
        (void)send_reply(from->socket.get(), reply, message.error().text(), -1);
      }
      return leave(from);
    }
    if (!*message) return;
    handle(from, std::move(**message));
  }
}

void Agent::answer(const std::shared_ptr<Connection>& to, const Request& request, Reply reply, const std::string& text,
                   int fd) {
  reply.type = request.type;
  reply.id = request.id;
  if (!to->gone && !send_reply(to->socket.get(), reply, text, fd)) leave(to);
}

void Agent::refuse(const std::shared_ptr<Connection>& to, const Request& request, const Error& error) {
  Reply reply;
  reply.status = exit_code(error.code);
  answer(to, request, reply, error.text() + (error.hint.empty() ? "" : " (" + error.hint + ")"));
}

void Agent::leave(const std::shared_ptr<Connection>& who) {
  if (who->gone) return;
  who->gone = true;
  begins_.remove_if([&](const WaitingBegin& waiting) { return waiting.from == who; });
  if (!who->rank) return;
  lonely_since_ = monotonic_us();
  ledger_.owner_left(who->number, connections_made_);
  ledger_.give_away_surplus(present());
  RankState& state = ledger_.rank(*who->rank);
  for (uint32_t i = 0; state.segment && i < state.segment->shape().buffers; ++i) {
    state.use[i].mapped = false;
    if (!std::exchange(state.use[i].writing, false)) continue;
    const SlotState slot = state.segment->slot(i);
    if (slot.sequence % 2 == 0) continue;  // it had not begun, or was done and could not say so any more
    state.segment->clear(i);
    ++counts_.aborted;
  }
  ledger_.settle();
  if (who->bye || who->copies) return;
  ++counts_.deaths;
  const auto newest = ledger_.newest_common();
  tell_(fmt::format("rank {} (process {}) is gone; {}", *who->rank, who->pid,
                    newest ? fmt::format("step {} is in memory", *newest) : "no step is complete in memory"));
  if (options_.on_death && newest && persister_.persisted() != newest) persister_.offer(*newest);
}

void Agent::handle(const std::shared_ptr<Connection>& from, Incoming message) {
  const Request& request = message.request;
  Result<void> done;
  switch (static_cast<Type>(request.type)) {
    case Type::kHello:
      done = hello(from, request);
      break;
    case Type::kDeclare:
      done = declare(from, message);
      break;
    case Type::kAdopt:
      done = adopt(from, message);
      break;
    case Type::kBegin:
      done = begin(from, request);
      break;
    case Type::kCommit:
      done = commit(from, request);
      break;
    case Type::kAbort:
      done = abort(from, request);
      break;
    case Type::kLoad:
      done = load(from, message);
      break;
    case Type::kRelease:
      done = release(from, request);
      break;
    case Type::kPersist:
      done = persist_asked(from, message);
      break;
    case Type::kStatus:
      answer(from, request, {}, status());
      break;
    case Type::kKeep:
      done = keep(from, request);
      break;
    case Type::kBye:
      from->bye = true;
      if (from->rank && !from->copies) ended_.insert(*from->rank);
      answer(from, request, {});
      break;
    default:
      done = fail(Code::kUnsupported, "", fmt::format("there is no request of type {}", request.type));
  }
  if (!done) refuse(from, request, done.error());
}

Result<void> Agent::hello(const std::shared_ptr<Connection>& from, const Request& request) {
  if (from->rank) return fail(Code::kUsage, "hello", "was said already on this connection");
  if (request.world == 0 || request.world > kMostRanks || request.rank >= request.world || request.local_world == 0 ||
      request.local_world > request.world)
    return fail(Code::kUsage, "hello", "says ranks that do not fit together");
  const bool copies = (request.flags & kPartnerCopy) != 0;
  // An agent that takes the place of one that was killed may hear of a copy before it hears of the node's own ranks.
  if (copies && ledger_.world() != 0 && (ledger_.world() != request.world || ledger_.expected() != request.local_world))
    return fail(Code::kUsage, "hello", fmt::format("of a partner copy is not of these {} ranks", ledger_.world()));
  for (const auto& other : connections_) {
    if (other->gone || other == from || other->rank != request.rank) continue;
    pollfd ended{other->process.get(), POLLIN, 0};
    if (other->process && ::poll(&ended, 1, 0) > 0)
      leave(other);
    else
      return fail(Code::kBusy, "", fmt::format("rank {} is process {} already", request.rank, other->pid));
  }
  if (ledger_.world() != request.world || ledger_.expected() != request.local_world) {
    if (!present().empty())
      return fail(Code::kUsage, "hello", fmt::format("the other ranks say that they are {}", ledger_.world()));
    if (ledger_.world() != 0)
      tell_(fmt::format("{} ranks instead of {}: memory is given back", request.world, ledger_.world()));
    ledger_ = {};
    ledger_.expect(request.local_world, request.world);
  }
  from->rank = request.rank;
  from->copies = copies;
  RankState& state = ledger_.rank(request.rank);
  if (state.kept) state.kept_by_former = std::exchange(state.kept, {});  // whoever comes goes on from the newest
  if (copies) {
    ledger_.take_copy(request.rank);
  } else {
    ended_.erase(request.rank);
    ledger_.take_in(request.rank);
    ledger_.give_away_surplus(present());
  }
  Reply reply;
  reply.step = ledger_.newest_common().value_or(kAnyStep);
  reply.value[0] = static_cast<uint64_t>(::getpid());
  answer(from, request, reply);
  return {};
}

Result<uint32_t> Agent::rank_of(const Connection& from) const {
  if (!from.rank) return fail(Code::kUsage, "", "a trainer says its rank first");
  return *from.rank;
}

Result<AgentEnd> Agent::last_words() {
  uint64_t since = monotonic_us();
  bool stopped = false;
  std::optional<std::pair<uint64_t, uint64_t>> wanted;  // a step, and the saves there had been: a failure is no reason
  auto missing = [&] {
    const auto newest = ledger_.newest_common();
    return newest && persister_.persisted() != newest ? newest : std::nullopt;
  };
  while (stop_.requested() || lonely()) {
    const uint64_t now = monotonic_us();
    if (stop_.requested() && !std::exchange(stopped, true)) {
      since = now;
      // An answer that cannot be sent takes its sender off the list.
      for (const WaitingBegin& waiting : std::exchange(begins_, {}))
        refuse(waiting.from, waiting.request, Error(Code::kBusy, "", "the agent ends"));
    }
    // Trainers save until the end.
    if (const auto step = missing(); step && wanted != std::pair(*step, counts_.saves)) {
      wanted.emplace(*step, counts_.saves);
      if (persister_.working_on() != step) persister_.want_last(*step);
    }
    persister_.work();
    if (persister_.is_idle() && !(missing() && persister_.follows())) break;
    // Nobody hurries it where all trainers have ended: what is being written gets the time that it takes.
    if (!stopped && persister_.is_working()) since = now;
    const uint64_t deadline = since + options_.grace_ms * 1000;
    if (now >= deadline && (stopped || !persister_.is_working())) break;
    const int left = now >= deadline ? -1 : static_cast<int>((deadline - now) / 1000 + 1), next = timeout_ms();
    CKPT_TRY(turn(next < 0 || left < 0 ? std::max(next, left) : std::min(left, next)));
  }
  return AgentEnd{!missing(), persister_.persisted().value_or(0)};
}

Result<AgentEnd> run_agent(const AgentOptions& options, const Cancel& stop, const Tell& tell,
                           const std::function<void()>& ready) {
  Agent agent(options, stop, tell);
  return agent.run(ready);
}

}  // namespace ckpt::flash
