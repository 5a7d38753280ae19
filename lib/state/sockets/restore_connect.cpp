// Connections between unix sockets. Each end remembers who made the other: the client who listened, the accepted end
// who connected, both ends of a pair who made it. So each of these calls is made by a process of that number. The
// listening socket is a stand-in that lives only here: the one of the tree comes later, with its own backlog.
#include <sys/un.h>

#include <algorithm>
#include <cerrno>

#include "lib/state/sockets/restore_internal.h"

namespace ckpt::restore {

using store::Socket;
using store::SocketState;

namespace {

/// Connections of one kind that one process made by socketpair.
struct Pairs {
  const store::SocketCredentials* maker = nullptr;
  int type = 0;
  std::vector<size_t> firsts;  ///< of both ends the one with the lower index
};

constexpr size_t kMostPairs = SharedValues::kValues / 2;

/// By who made them, no more than one call of a child can tell.
void add_to(std::vector<Pairs>& all, const Socket& record, size_t index) {
  auto known = std::find_if(all.begin(), all.end(), [&](const Pairs& one) {
    return one.type == record.type && *one.maker == record.peer_credentials && one.firsts.size() < kMostPairs;
  });
  if (known == all.end()) known = all.insert(all.end(), Pairs{&record.peer_credentials, record.type, {}});
  known->firsts.push_back(index);
}

/// Their ends, two for each. All of them in one child: with ckpt's own memory to copy a child takes longer than the
/// calls of hundreds.
Result<std::vector<UniqueFd>> make_pairs(const Pairs& pairs, CallResult& result) {
  CKPT_TRY_ASSIGN(SharedValues ends, SharedValues::create());
  int* out = ends.values();
  const size_t count = pairs.firsts.size();
  std::fill_n(out, 2 * count, -1);
  CKPT_TRY_ASSIGN(result, run_as(*pairs.maker, [&] {
                    for (size_t i = 0; i < count; ++i) {
                      if (::socketpair(AF_UNIX, pairs.type | SOCK_CLOEXEC, 0, out + 2 * i) != 0) return -errno;
                    }
                    return 0;
                  }));
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i < 2 * count; ++i) fds.emplace_back(out[i]);
  if (result.value < 0) return sys_error(-result.value, "", "cannot be made with its peer");
  return fds;
}

/// Connections between ends without a name.
std::vector<Pairs> find_pairs(const std::vector<Socket>& records) {
  std::vector<Pairs> out;
  for (size_t i = 0; i < records.size(); ++i) {
    const Socket& record = records[i];
    const bool connected =
        record.family == AF_UNIX && record.type != SOCK_DGRAM && record.state == SocketState::kConnected;
    if (!connected || static_cast<size_t>(record.peer) <= i || !record.name.empty()) continue;
    if (records[static_cast<size_t>(record.peer)].name.empty()) add_to(out, record, i);
  }
  return out;
}

void make_all_pairs(SocketWork& work) {
  for (const Pairs& pairs : find_pairs(work.records)) {
    CallResult result;
    auto made = make_pairs(pairs, result);
    for (size_t i = 0; i < pairs.firsts.size(); ++i) {
      const size_t first = pairs.firsts[i];
      const Socket& record = work.records[first];
      if (!made) {
        work.fail(first, made.error());
        continue;
      }
      work.fds[first] = std::move((*made)[2 * i]);
      work.fds[static_cast<size_t>(record.peer)] = std::move((*made)[2 * i + 1]);
      work.note_number(record, result, record.peer_credentials.pid);
    }
  }
}

}  // namespace

void UnixBuilder::make_connections() {
  make_all_pairs(work_);
  for (size_t i = 0; i < work_.records.size(); ++i) {
    const Socket& record = work_.records[i];
    if (!is_unix(i) || record.type == SOCK_DGRAM || work_.fds[i] || work_.failed.count(i) != 0) continue;
    if (record.state == SocketState::kConnected && static_cast<size_t>(record.peer) > i) {
      work_.check(i, make_connection(i, static_cast<size_t>(record.peer)));
    } else if (record.state == SocketState::kPeerGone) {
      work_.check(i, make_orphan(i));
    }
  }
  // An abstract name must be free before the tree's own socket takes it.
  listeners_.clear();
}

bool UnixBuilder::is_accepted_side(const Socket& socket, const Socket& other) const {
  if (socket.name.empty() || other.name.empty()) return !socket.name.empty();
  bool ours = false, theirs = false;
  for (const Socket& record : work_.records) {
    if (record.family != AF_UNIX || record.state != SocketState::kListening) continue;
    ours |= record.name == socket.name, theirs |= record.name == other.name;
  }
  if (ours != theirs) return ours;
  return socket.file.path.empty() || socket.file.deleted || !other.file.deleted;
}

Result<void> UnixBuilder::make_connection(size_t a, size_t b) {
  const Socket &one = work_.records[a], &other = work_.records[b];
  bool second = is_accepted_side(other, one);
  size_t client = second ? a : b, accepted = second ? b : a;
  named_.insert(accepted);
  return connect_pair(work_.records[client], work_.fds[client], {work_.records[accepted], work_.fds[accepted]});
}

Result<void> UnixBuilder::make_orphan(size_t index) {
  const Socket& record = work_.records[index];
  Socket gone;
  gone.type = record.type, gone.name = record.peer_name;
  if (unix_name(gone.name).empty()) gone.name.clear();
  UniqueFd& end = ends_[index];
  if (record.name.empty() && gone.name.empty()) return make_pair(record, work_.fds[index], end);
  if (!is_accepted_side(record, gone)) return connect_pair(record, work_.fds[index], {gone, end});
  named_.insert(index);
  CKPT_TRY(connect_pair(gone, end, {record, work_.fds[index]}));
  return gone.name.empty() ? Result<void>() : names_.bind_name(end.get(), gone.name);
}

Result<void> UnixBuilder::make_pair(const Socket& record, UniqueFd& one, UniqueFd& other) {
  CKPT_TRY_ASSIGN(SharedValues ends, SharedValues::create());
  int* out = ends.values();
  CKPT_TRY_ASSIGN(CallResult result, run_as(record.peer_credentials, [&] {
                    return ::socketpair(AF_UNIX, record.type | SOCK_CLOEXEC, 0, out) == 0 ? 0 : -errno;
                  }));
  if (result.value < 0) return sys_error(-result.value, subject_of(record), "cannot be made with its peer");
  one.reset(out[0]), other.reset(out[1]);
  work_.note_number(record, result, record.peer_credentials.pid);
  return {};
}

Result<int> UnixBuilder::stand_in_listener(int type, const SocketName& name, const Socket& client) {
  const auto& owner = client.peer_credentials;
  for (const Listener& known : listeners_) {
    if (known.type == type && known.name == name && known.owner == owner) return known.fd.get();
  }
  if (is_abstract(name)) std::erase_if(listeners_, [&](const Listener& known) { return known.name == name; });
  CKPT_TRY_ASSIGN(UniqueFd fd, open_socket(AF_UNIX, type, 0));
  CKPT_TRY(names_.bind_name(fd.get(), name));
  CKPT_TRY_ASSIGN(CallResult result, run_as(owner, [&] { return ::listen(fd.get(), 1) == 0 ? 0 : -errno; }));
  if (result.value < 0) return sys_error(-result.value, name_text(name), "cannot listen");
  work_.note_number(client, result, owner.pid);
  listeners_.push_back({type, name, owner, std::move(fd)});
  return listeners_.back().fd.get();
}

Result<void> UnixBuilder::connect_pair(const Socket& client, UniqueFd& client_fd, const Accepted& accepted) {
  CKPT_TRY_ASSIGN(int listener, stand_in_listener(client.type, accepted.record.name, client));
  CKPT_TRY_ASSIGN(client_fd, open_socket(AF_UNIX, client.type, 0));
  const auto& connector = accepted.record.peer_credentials;
  CKPT_TRY_ASSIGN(CallResult result, connect_unix(client_fd.get(), listener, accepted.record.name, connector));
  if (result.value < 0) return sys_error(-result.value, name_text(accepted.record.name), "cannot be connected to");
  work_.note_number(accepted.record, result, connector.pid);
  accepted.fd.reset(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted.fd) return sys_error(name_text(accepted.record.name), "cannot accept a connection");
  return {};
}

}  // namespace ckpt::restore
