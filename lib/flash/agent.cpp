#include "lib/flash/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <list>

#include "lib/base/clock.h"
#include "lib/base/io.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/flash/channel.h"
#include "lib/flash/ledger.h"
#include "lib/flash/listener.h"
#include "lib/flash/persister.h"

namespace ckpt::flash {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostConnections = 8192;
constexpr uint64_t kLeastObjects = 1 << 20;

struct Connection {
  uint64_t number = 0;  ///< of all that there were
  UniqueFd socket, process;
  int pid = 0;
  std::optional<uint32_t> rank;
  bool copies = false;  ///< what it saves is a partner copy: the rank's trainer is on another node
  bool bye = false, gone = false;
};

/// A kBegin that waits for a buffer.
struct WaitingBegin {
  std::shared_ptr<Connection> from;
  Request request;
  uint64_t deadline_us = 0;
};

struct Counts {
  uint64_t saves = 0, skipped = 0, waited = 0, refused = 0, aborted = 0, deaths = 0;
};

class Agent {
 public:
  Agent(const AgentOptions& options, const Cancel& stop, const Tell& tell)
      : options_(options), stop_(stop), tell_(tell) {}
  ~Agent() {
    give_up_.store(true);
    cancel_.request();
    background_.join();
  }

  Result<AgentEnd> run(const std::function<void()>& ready) {
    std::vector<fs::path> made;
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
    while (!stop_.requested() && !(lonely() && !persister_.is_working())) CKPT_TRY(turn(timeout_ms()));
    return last_words();
  }

 private:
  // --- the loop ---

  Result<void> turn(int timeout) {
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
    retry_begins();
    persister_.work();
    return {};
  }

  /// Until the next deadline; -1: none.
  int timeout_ms() const {
    uint64_t next = UINT64_MAX;
    for (const WaitingBegin& waiting : begins_) next = std::min(next, waiting.deadline_us);
    if (options_.linger_ms > 0 && present().empty()) next = std::min(next, lonely_since_ + linger_us());
    next = std::min(next, persister_.next_look_us().value_or(UINT64_MAX));
    if (next == UINT64_MAX) return -1;
    const uint64_t now = monotonic_us();
    return next <= now ? 0 : static_cast<int>(std::min<uint64_t>((next - now) / 1000 + 1, 1 << 30));
  }

  /// Ranks of this node whose trainers are connected.
  std::set<uint32_t> present() const {
    std::set<uint32_t> out;
    for (const auto& connection : connections_) {
      if (connection->rank && !connection->copies && !connection->gone) out.insert(*connection->rank);
    }
    return out;
  }
  bool lonely() const {
    return options_.linger_ms > 0 && present().empty() && monotonic_us() >= lonely_since_ + linger_us();
  }
  /// Once every rank has ended in order nobody comes back.
  uint64_t linger_us() const {
    return (ended_.size() >= ledger_.expected() && !ended_.empty() ? std::min<uint64_t>(options_.linger_ms, 1000)
                                                                   : options_.linger_ms) *
           1000;
  }

  void welcome() {
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
      if (connection->pid > 0)
        connection->process.reset(static_cast<int>(::syscall(SYS_pidfd_open, connection->pid, 0)));
      if (connections_.size() >= kMostConnections) continue;
      connection->socket = std::move(socket);
      connections_.push_back(std::move(connection));
    }
  }

  void receive(const std::shared_ptr<Connection>& from) {
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

  void answer(const std::shared_ptr<Connection>& to, const Request& request, Reply reply, const std::string& text = {},
              int fd = -1) {
    reply.type = request.type;
    reply.id = request.id;
    if (!to->gone && !send_reply(to->socket.get(), reply, text, fd)) leave(to);
  }
  void refuse(const std::shared_ptr<Connection>& to, const Request& request, const Error& error) {
    Reply reply;
    reply.status = exit_code(error.code);
    answer(to, request, reply, error.text() + (error.hint.empty() ? "" : " (" + error.hint + ")"));
  }
  /// Closes the connection; its rank's data stay.
  void leave(const std::shared_ptr<Connection>& who) {
    if (who->gone) return;
    who->gone = true;
    begins_.remove_if([&](const WaitingBegin& waiting) { return waiting.from == who; });
    if (!who->rank) return;
    lonely_since_ = monotonic_us();
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
    if (options_.on_death && newest && persister_.persisted() != newest) persister_.want(*newest);
  }

  // --- requests ---

  void handle(const std::shared_ptr<Connection>& from, Incoming message) {
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

  Result<void> hello(const std::shared_ptr<Connection>& from, const Request& request) {
    if (from->rank) return fail(Code::kUsage, "hello", "was said already on this connection");
    if (request.world == 0 || request.world > kMostRanks || request.rank >= request.world || request.local_world == 0 ||
        request.local_world > request.world)
      return fail(Code::kUsage, "hello", "says ranks that do not fit together");
    const bool copies = (request.flags & kPartnerCopy) != 0;
    if (copies && (ledger_.world() != request.world || ledger_.expected() != request.local_world))
      return fail(Code::kUsage, "hello", "of a partner copy comes before the job's own ranks are known");
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
    ledger_.rank(request.rank).kept.reset();  // whoever comes goes on from the newest
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

  Result<uint32_t> rank_of(const Connection& from) const {
    if (!from.rank) return fail(Code::kUsage, "", "a trainer says its rank first");
    return *from.rank;
  }

  Result<void> declare(const std::shared_ptr<Connection>& from, Incoming& message) {
    CKPT_TRY_ASSIGN(const uint32_t rank, rank_of(*from));
    if (message.fds.size() != 1) return fail(Code::kUsage, "declare", "comes without a layout");
    // Sealed against writing: it is what was checked that is kept.
    const int fd = message.fds[0].get(), seals = ::fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_SHRINK)) != (F_SEAL_WRITE | F_SEAL_SHRINK))
      return fail(Code::kUsage, "declare", "has a layout that is not sealed");
    CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd, "layout"));
    if (static_cast<uint64_t>(st.st_size) > kMostLayoutBytes)
      return fail(Code::kUsage, "declare", "has a layout too large");
    std::string text(static_cast<size_t>(st.st_size), 0);
    CKPT_TRY(io::pread_exact(fd, {reinterpret_cast<std::byte*>(text.data()), text.size()}, 0, "layout"));
    const uint64_t capacity = std::max(message.request.value, kLeastObjects);
    if (capacity > kMostSegmentBytes) return fail(Code::kUsage, "declare", "wants too much room for objects");
    RankState& state = ledger_.rank(rank);
    if (state.segment && state.segment->layout_text() == text &&
        state.segment->shape().objects_capacity >= message.request.value)
      return hand_over(from, message.request, state);
    CKPT_TRY_ASSIGN(const BufferLayout layout, decode_layout(as_bytes(text)));
    const uint64_t bytes = (layout.data_bytes + capacity) * (ledger_.expected() + partner_copies());
    const uint32_t buffers = options_.buffers != 0 ? options_.buffers : buffers_for(bytes);
    CKPT_TRY_ASSIGN(auto segment, Segment::create(rank, ledger_.world(), std::move(text), capacity, buffers));
    if (buffers == 1)
      tell_(fmt::format("rank {}: memory allows one buffer of {}: a trainer killed in a save leaves no step in memory",
                        rank, human_bytes(layout.data_bytes)));
    replace_segment(state, segment);
    background_.start([this, segment] { segment->touch(give_up_); });
    return hand_over(from, message.request, state);
  }

  size_t partner_copies() const { return ledger_.ranks().size() - ledger_.seen(); }

  /// The old one stays for as long as it has the newest step.
  void replace_segment(RankState& state, std::shared_ptr<Segment> segment) {
    const bool has_steps = state.segment && !state.steps().empty();
    if (has_steps && !state.before) state.before = state.segment;
    state.segment = std::move(segment);
    state.use = {};
  }

  Result<void> hand_over(const std::shared_ptr<Connection>& to, const Request& request, const RankState& state) {
    Reply reply;
    reply.value[0] = state.segment->shape().buffers;
    answer(to, request, reply, {}, state.segment->fd());
    return {};
  }

  Result<void> adopt(const std::shared_ptr<Connection>& from, Incoming& message) {
    CKPT_TRY_ASSIGN(const uint32_t rank, rank_of(*from));
    if (message.fds.size() != 1) return fail(Code::kUsage, "adopt", "comes without a segment");
    CKPT_TRY_ASSIGN(auto segment, Segment::adopt(std::move(message.fds[0])));
    if (segment->shape().rank != rank || segment->shape().world != ledger_.world())
      return fail(Code::kUsage, "adopt", "is the segment of another rank");
    RankState& state = ledger_.rank(rank);
    if (state.segment && !state.steps().empty()) return fail(Code::kBusy, "adopt", "this agent has steps of this rank");
    state = {};
    state.partner_copy = from->copies;
    state.segment = std::move(segment);
    for (uint32_t i = 0; i < state.segment->shape().buffers; ++i) {
      if (state.segment->slot(i).sequence % 2 != 0) state.segment->clear(i);
      state.use[i].owner = from->number;
    }
    tell_(fmt::format("rank {}: took over the memory of an agent that is gone", rank));
    return hand_over(from, message.request, state);
  }

  Result<RankState*> declared(const Connection& from) {
    CKPT_TRY_ASSIGN(const uint32_t rank, rank_of(from));
    RankState& state = ledger_.rank(rank);
    if (!state.segment) return fail(Code::kUsage, "", "a trainer declares its layout first");
    return &state;
  }
  Result<BufferUse*> buffer_in(const Connection& from, const Request& request) {
    CKPT_TRY_ASSIGN(RankState * state, declared(from));
    if (request.value >= state->segment->shape().buffers) return fail(Code::kUsage, "", "there is no such buffer");
    return &state->use[request.value];
  }

  Result<void> begin(const std::shared_ptr<Connection>& from, const Request& request) {
    CKPT_TRY_ASSIGN(RankState * state, declared(*from));
    if (request.step == kAnyStep) return fail(Code::kUsage, "begin", "names no step");
    uint32_t buffer = 0;
    const Ledger::Choice choice = ledger_.choose(*from->rank, request.step, buffer);
    Reply reply;
    reply.step = request.step;
    if (choice == Ledger::Choice::kGranted) {
      grant(*from, *state, buffer);
      reply.value[0] = buffer;
    } else if (choice == Ledger::Choice::kPinned) {
      reply.status = kPinned;
    } else if (static_cast<IfBusy>(request.flags) == IfBusy::kWait) {
      ++counts_.waited;
      begins_.push_back({from, request, monotonic_us() + std::min<uint64_t>(request.value, 1 << 30) * 1000});
      return {};
    } else if (static_cast<IfBusy>(request.flags) == IfBusy::kFail) {
      ++counts_.refused;
      return fail(Code::kBusy, "", busy_text());
    } else {
      reply.status = kSkipped;
      reply.value[1] = ++counts_.skipped;
      tell_(fmt::format("rank {}: the save of step {} was skipped: {}", *from->rank, request.step, busy_text()));
      return answer(from, request, reply, busy_text()), Result<void>();
    }
    answer(from, request, reply);
    return {};
  }
  static void grant(const Connection& to, RankState& state, uint32_t buffer) {
    state.use[buffer].writing = true;
    state.use[buffer].owner = to.number;
  }
  std::string busy_text() const {
    const std::optional<uint64_t> step = persister_.working_on();
    return step ? fmt::format("step {} is still being written to storage", *step) : "every buffer is in use";
  }

  void retry_begins() {
    std::list<WaitingBegin> waiting;
    waiting.swap(begins_);
    for (WaitingBegin& one : waiting) {
      uint32_t buffer = 0;
      const bool late = monotonic_us() >= one.deadline_us;
      const auto choice = ledger_.choose(*one.from->rank, one.request.step, buffer);
      if (choice == Ledger::Choice::kBusy && !late) {
        begins_.push_back(std::move(one));
        continue;
      }
      Reply reply;
      reply.step = one.request.step;
      reply.value[0] = buffer;
      if (choice == Ledger::Choice::kBusy) {
        ++counts_.refused;
        refuse(one.from, one.request, Error(Code::kBusy, "", busy_text() + ", and the time to wait is over"));
        continue;
      }
      if (choice == Ledger::Choice::kPinned)
        reply.status = kPinned;
      else
        grant(*one.from, ledger_.rank(*one.from->rank), buffer);
      answer(one.from, one.request, reply);
    }
  }

  Result<void> commit(const std::shared_ptr<Connection>& from, const Request& request) {
    CKPT_TRY_ASSIGN(BufferUse * use, buffer_in(*from, request));
    const auto& segment = ledger_.rank(*from->rank).segment;
    const SlotState slot = segment->slot(static_cast<uint32_t>(request.value));
    if (!use->writing || !slot.complete() || slot.step != request.step)
      return fail(Code::kUsage, "commit", "of a buffer that holds no complete step of this number");
    use->writing = false;
    ++counts_.saves;
    if (!from->copies) {
      // Who saves this step makes later ones anew: those of trainers that are gone are no part of that.
      if (request.step > 0) forget_after(request.step - 1);
      persister_.saved(request.step, (request.flags & kPersistThis) != 0);
    }
    ledger_.settle();
    Reply reply;
    reply.step = ledger_.newest_common().value_or(kAnyStep);
    answer(from, request, reply);
    return {};
  }

  Result<void> abort(const std::shared_ptr<Connection>& from, const Request& request) {
    CKPT_TRY_ASSIGN(BufferUse * use, buffer_in(*from, request));
    const auto buffer = static_cast<uint32_t>(request.value);
    if (std::exchange(use->writing, false) && ledger_.rank(*from->rank).segment->slot(buffer).sequence % 2 != 0)
      ledger_.rank(*from->rank).segment->clear(buffer);
    ++counts_.aborted;
    answer(from, request, {});
    return {};
  }

  Result<void> keep(const std::shared_ptr<Connection>& from, const Request& request) {
    CKPT_TRY_ASSIGN(RankState * state, declared(*from));
    state->kept = request.step;
    ledger_.settle();
    answer(from, request, {});
    return {};
  }

  Result<void> release(const std::shared_ptr<Connection>& from, const Request& request) {
    CKPT_TRY_ASSIGN(BufferUse * use, buffer_in(*from, request));
    use->mapped = false;
    answer(from, request, {});
    return {};
  }

  // --- loading ---

  Result<void> load(const std::shared_ptr<Connection>& from, const Incoming& message) {
    const Request& request = message.request;
    CKPT_TRY_ASSIGN(const uint32_t own, rank_of(*from));
    const uint32_t rank = request.rank;  // another's, for those who put parts of several together
    if (rank >= ledger_.world()) return fail(Code::kUsage, "load", "names no rank of this job");
    const auto how = static_cast<LoadFrom>(request.flags);
    if (const RankState* copy = ledger_.find(rank); copy != nullptr && copy->partner_copy)
      return load_copy(from, request, *copy);
    const auto steps = ledger_.common_steps();
    const bool any = request.step == kAnyStep;
    const bool there = any ? !steps.empty() : std::find(steps.begin(), steps.end(), request.step) != steps.end();
    if (how != LoadFrom::kStorage && message.text.empty() && there) {
      const uint64_t step = any ? steps.back() : request.step;
      // Whoever goes on from a step saves later ones anew; those of before must not be taken for parts of them.
      if (rank == own && (any || how == LoadFrom::kBest)) forget_after(step);
      for (const Held& held : ledger_.holders(step)) {
        if (held.rank == rank) return hand_out(from, request, held, step, Level::kMemory);
      }
    }
    if (how == LoadFrom::kMemory) return fail(Code::kNotFound, "", ledger_.why_not_common(request.step));
    if (rank != own) return fail(Code::kUsage, "load", "of another rank comes from memory alone");
    background_.start([this, from, request, rank, path = fs::path(message.text), world = ledger_.world()] {
      auto segment = load_rank(options_.directory, path, rank, world, cancel_);
      background_.post([this, from, request, rank, path, segment = std::move(segment)]() mutable {
        loaded(from, request, rank, std::move(segment), path.empty());
      });
    });
    return {};
  }

  /// What is here of a rank of another node.
  Result<void> load_copy(const std::shared_ptr<Connection>& to, const Request& request, const RankState& copy) {
    const std::set<uint64_t> steps = copy.steps();
    const uint64_t step = request.step == kAnyStep && !steps.empty() ? *steps.rbegin() : request.step;
    const std::optional<Held> held = ledger_.holder(request.rank, step);
    if (!held)
      return fail(Code::kNotFound, "", fmt::format("the partner copy of rank {} has no such step", request.rank));
    return hand_out(to, request, *held, step, Level::kPartner);
  }

  void loaded(const std::shared_ptr<Connection>& from, const Request& request, uint32_t rank,
              Result<std::shared_ptr<Segment>> segment, bool from_own_directory) {
    if (from->gone) return;
    if (!segment) return refuse(from, request, segment.error());
    const uint64_t step = (*segment)->slot(0).step;
    if (request.step != kAnyStep && step != request.step)
      return refuse(from, request, Error(Code::kNotFound, "", fmt::format("storage has step {}", step)));
    RankState& state = ledger_.rank(rank);
    state = {};
    state.segment = *segment;
    if (from_own_directory) persister_.found(step);
    forget_after(step);
    (void)hand_out(from, request, {rank, *segment, 0}, step, Level::kStorage);
  }

  Result<void> hand_out(const std::shared_ptr<Connection>& to, const Request& request, const Held& held, uint64_t step,
                        Level level) {
    RankState& state = ledger_.rank(held.rank);
    const bool pins = held.segment == state.segment && to->rank == held.rank;
    if (pins) state.use[held.buffer].mapped = true;
    Reply reply;
    reply.step = step;
    reply.value[0] = held.buffer;
    reply.value[1] = static_cast<uint64_t>(level);
    reply.value[2] = pins ? 1 : 0;
    answer(to, request, reply, {}, held.segment->fd());
    return {};
  }

  /// The job goes on from this step: what trainers that are gone have saved after it will not come to be, and must not
  /// be taken for the same steps of those that are now.
  void forget_after(uint64_t step) {
    std::set<uint64_t> alive;
    for (const auto& connection : connections_) {
      if (!connection->gone) alive.insert(connection->number);
    }
    ledger_.forget_after(step, alive);
  }

  // --- persisting ---

  Result<void> persist_asked(const std::shared_ptr<Connection>& from, const Incoming& message) {
    const Request& request = message.request;
    const auto steps = ledger_.common_steps();
    const bool any = request.step == kAnyStep;
    if (steps.empty() || (!any && std::find(steps.begin(), steps.end(), request.step) == steps.end()))
      return fail(Code::kNotFound, "", ledger_.why_not_common(request.step));
    if (persister_.follows())
      return Error(Code::kUnsupported, "", "a checkpoint of several nodes is made by the agent of rank 0")
          .with_hint("ask that one");
    if (ledger_.several_nodes() && !message.text.empty())
      return fail(Code::kUnsupported, message.text, "is not where the other nodes' agents look");
    const uint64_t step = any ? steps.back() : request.step;
    Reply known;
    known.step = step;
    if (message.text.empty() && persister_.persisted() == step) return answer(from, request, known), Result<void>();
    const bool waits = (request.flags & kWait) != 0;
    persister_.want(
        step, message.text,
        !waits ? Persister::Done()
               : [this, to = std::weak_ptr(from), request](uint64_t, const Result<PersistReport>& report) {
                   if (auto waiting = to.lock()) tell_persisted(waiting, request, report);
                 });
    persister_.work();  // it holds the step's buffers before whoever asked can save again
    if (!waits) answer(from, request, known);
    return {};
  }

  void tell_persisted(const std::shared_ptr<Connection>& to, const Request& request,
                      const Result<PersistReport>& report) {
    Reply reply;
    if (!report) {
      reply.step = request.step;
      reply.status = exit_code(report.error().code);
      return answer(to, request, reply, report.error().text());
    }
    reply.step = report->step;
    reply.value[0] = report->bytes;
    reply.value[1] = report->plan_us + report->write_us;
    reply.value[2] = report->verify_us;
    reply.value[3] = report->sync_us;
    answer(to, request, reply, report->path.string());
  }

  /// What a SIGTERM leaves time for.
  Result<AgentEnd> last_words() {
    const uint64_t deadline = monotonic_us() + options_.grace_ms * 1000;
    const auto newest = ledger_.newest_common();
    // An answer that cannot be sent takes its sender off the list.
    for (const WaitingBegin& waiting : std::exchange(begins_, {}))
      refuse(waiting.from, waiting.request, Error(Code::kBusy, "", "the agent ends"));
    if (newest && persister_.persisted() != newest) persister_.want(*newest);
    persister_.work();
    while (!persister_.is_idle() || (newest && persister_.follows() && persister_.persisted() != newest)) {
      const uint64_t now = monotonic_us();
      if (now >= deadline) break;
      const int left = static_cast<int>((deadline - now) / 1000 + 1), next = timeout_ms();
      CKPT_TRY(turn(next < 0 ? left : std::min(left, next)));
    }
    AgentEnd out;
    out.saved = !newest || persister_.persisted() == newest;
    out.step = persister_.persisted().value_or(0);
    return out;
  }

  std::string status() const {
    JsonWriter out;
    out.open('{');
    out.members("schema", "ckpt.agent/1", "pid", ::getpid(), "directory", options_.directory.string(), "format",
                options_.format, "world", ledger_.world(), "local_world", ledger_.expected(), "newest_step",
                ledger_.newest_common(), "persisted_step", persister_.persisted(), "persisting_step",
                persister_.working_on());
    out.members("saves", counts_.saves, "skipped", counts_.skipped, "waited", counts_.waited, "refused",
                counts_.refused, "aborted", counts_.aborted, "persists", persister_.persists(), "failures",
                persister_.failures(), "deaths", counts_.deaths, "last_error", persister_.last_error());
    status_of_ranks(out, "ranks", false);
    status_of_ranks(out, "partner_copies", true);
    return std::move(out).finish();
  }
  void status_of_ranks(JsonWriter& out, const char* name, bool partner_copies) const {
    out.open(name, '[');
    size_t shown = 0;
    for (const auto& [number, state] : ledger_.ranks()) {
      if (state.partner_copy != partner_copies) continue;
      if (shown++ == 256) break;
      out.open('{');
      const auto of_rank = std::find_if(connections_.begin(), connections_.end(),
                                        [rank = number](const auto& c) { return c->rank == rank && !c->gone; });
      out.members("rank", number, "pid", of_rank != connections_.end() ? std::optional((*of_rank)->pid) : std::nullopt,
                  "bytes", state.segment ? state.segment->shape().segment_bytes : 0, "buffers",
                  state.segment ? state.segment->shape().buffers : 0, "steps", state.steps());
      out.close();
    }
    out.close();
  }

  const AgentOptions& options_;
  const Cancel& stop_;
  const Tell& tell_;
  Listener listener_;
  sigset_t waiting_mask_{};
  std::list<std::shared_ptr<Connection>> connections_;
  uint64_t connections_made_ = 0;
  std::list<WaitingBegin> begins_;
  Ledger ledger_;
  std::set<uint32_t> ended_;  ///< ranks that said kBye
  Counts counts_;
  uint64_t lonely_since_ = monotonic_us();

  std::atomic<bool> give_up_{false};
  Cancel cancel_;
  Background background_;
  Persister persister_{options_, ledger_, background_, stop_, cancel_, tell_};
};

}  // namespace

Result<AgentEnd> run_agent(const AgentOptions& options, const Cancel& stop, const Tell& tell,
                           const std::function<void()>& ready) {
  Agent agent(options, stop, tell);
  return agent.run(ready);
}

}  // namespace ckpt::flash
