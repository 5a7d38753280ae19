#include <fmt/format.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/bytes.h"
#include "lib/state/sockets/restore_internal.h"

namespace ckpt::restore {

using store::Socket;
using store::SocketMessage;
using store::SocketState;

void UnixBuilder::run() {
  make_connections();
  make_others();
  name_all();
  fill_all();
  connect_datagrams();
  listen_all();
  finish_all();
}

bool UnixBuilder::is_mutual(size_t index) const {
  const Socket& record = work_.records[index];
  if (record.state != SocketState::kConnected) return false;
  const Socket& peer = work_.records[static_cast<size_t>(record.peer)];
  return peer.state == SocketState::kConnected && peer.peer == static_cast<int>(index) &&
         record.peer != static_cast<int>(index);
}

void UnixBuilder::make_others() {
  for (size_t i = 0; i < work_.records.size(); ++i) {
    if (!is_unix(i) || work_.failed.count(i) != 0) continue;
    if (!work_.fds[i]) work_.check(i, make_other(i));
    if (work_.is_usable(i)) work_.check(i, set_options(work_.fds[i].get(), work_.records[i], false, work_.notes));
  }
}

/// Datagram sockets with peer credentials were born in pairs.
Result<void> UnixBuilder::make_other(size_t index) {
  const Socket& record = work_.records[index];
  if (record.type != SOCK_DGRAM || record.peer_credentials.pid == 0) {
    CKPT_TRY_ASSIGN(work_.fds[index], open_socket(AF_UNIX, record.type, 0));
    return {};
  }
  auto peer = static_cast<size_t>(std::max(record.peer, 0));
  if (is_mutual(index) && !work_.fds[peer] && work_.records[peer].peer_credentials == record.peer_credentials) {
    joined_.insert(index), joined_.insert(peer);
    return make_pair(record, work_.fds[index], work_.fds[peer]);
  }
  UniqueFd other;
  CKPT_TRY(make_pair(record, work_.fds[index], other));
  if (record.state == SocketState::kPeerGone && unix_name(record.peer_name).empty()) {
    joined_.insert(index);
    ends_[index] = std::move(other);
    return {};
  }
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  if (::connect(work_.fds[index].get(), &none, sizeof none) != 0)
    return sys_error(subject_of(record), "cannot be parted from its pair");
  return {};
}

void UnixBuilder::name_all() {
  for (size_t i = 0; i < work_.records.size(); ++i) {
    const Socket& record = work_.records[i];
    if (is_unix(i) && work_.is_usable(i) && !record.name.empty() && named_.count(i) == 0)
      work_.check(i, names_.bind_own(work_.fds[i].get(), record));
  }
}

void UnixBuilder::fill_all() {
  for (size_t i = 0; i < work_.records.size(); ++i) {
    if (is_unix(i) && work_.is_usable(i) && !work_.records[i].messages.empty()) work_.check(i, fill(i));
  }
}

Result<void> UnixBuilder::fill(size_t index) {
  const Socket& record = work_.records[index];
  if (record.type != SOCK_DGRAM && record.state == SocketState::kExternal) {
    work_.note(record, "what it had received and not read yet is lost: its peer outside is connected anew");
    return {};
  }
  std::vector<std::byte> content;
  if (record.content_size != 0) {
    CKPT_TRY_ASSIGN(content, work_.sources.read_content(record));
  }
  if (content.size() != record.content_size)
    return Error(Code::kCorrupt, subject_of(record), "its content is not in the image");
  size_t at = 0;
  for (const SocketMessage& message : record.messages) {
    CKPT_TRY_ASSIGN(UnixRoute route, route_of(index, message));
    widen_buffers(route.sender, record.content_size + record.messages.size() * 1024);
    CKPT_TRY(send_unix(work_, record, message, ByteSpan(content).subspan(at, message.size), route));
    at += message.size;
  }
  return {};
}

Result<UnixRoute> UnixBuilder::route_of(size_t index, const SocketMessage& message) {
  const Socket& record = work_.records[index];
  auto end = ends_.find(index);
  if (end != ends_.end()) return UnixRoute{end->second.get(), -1, {}};
  bool connected = record.state == SocketState::kConnected && (record.type != SOCK_DGRAM || joined_.count(index) != 0);
  if (connected && work_.is_usable(static_cast<size_t>(record.peer)))
    return UnixRoute{work_.fds[static_cast<size_t>(record.peer)].get(), -1, {}};
  if (record.type != SOCK_DGRAM || record.name.empty())
    return Error(Code::kUnsupported, subject_of(record), "nobody can send it what it had received");
  CKPT_TRY_ASSIGN(int sender, datagram_sender(record, message.from));
  return UnixRoute{sender, work_.fds[index].get(), record.name};
}

/// A socket of that name: the tree's own, or a stand-in for one that is gone or outside.
Result<int> UnixBuilder::datagram_sender(const Socket& record, const SocketName& from) {
  std::string name = unix_name(from);
  for (size_t i = 0; i < work_.records.size() && !name.empty(); ++i) {
    const Socket& other = work_.records[i];
    if (is_unix(i) && other.type == SOCK_DGRAM && work_.is_usable(i) && other.name == from) return work_.fds[i].get();
  }
  auto [known, fresh] = stand_ins_.try_emplace(from);
  if (!fresh) return known->second.get();
  CKPT_TRY_ASSIGN(known->second, open_socket(AF_UNIX, SOCK_DGRAM, 0));
  if (name.empty()) return known->second.get();
  auto bound = names_.bind_name(known->second.get(), from);
  if (!bound)
    work_.note(record, fmt::format("the sender of a datagram, {}, has no name any more ({})", name_text(from),
                                   bound.error().text()));
  return known->second.get();
}

void UnixBuilder::connect_datagrams() {
  stand_ins_.clear();
  for (size_t i = 0; i < work_.records.size(); ++i) {
    if (is_unix(i) && work_.records[i].type == SOCK_DGRAM)
      connect_datagram_in_order(i);
    else if (is_unix(i) && work_.is_usable(i) && work_.records[i].state == SocketState::kExternal)
      work_.check(i, connect_outside(i));
  }
}

/// A socket that is connected elsewhere can no longer be connected to: those that send to it come first.
void UnixBuilder::connect_datagram_in_order(size_t index) {
  if (!work_.is_usable(index) || !joined_.insert(index).second) return;
  for (size_t i = 0; i < work_.records.size(); ++i) {
    const Socket& other = work_.records[i];
    bool sends_here = is_unix(i) && other.type == SOCK_DGRAM && other.state == SocketState::kConnected &&
                      other.peer == static_cast<int>(index);
    if (sends_here && !(is_mutual(index) && work_.records[index].peer == static_cast<int>(i)))
      connect_datagram_in_order(i);
  }
  work_.check(index, connect_datagram(index));
}

Result<void> UnixBuilder::connect_datagram(size_t index) {
  const Socket& record = work_.records[index];
  if (record.state == SocketState::kExternal) return connect_outside(index);
  UniqueFd gone;
  int target = -1;
  SocketName name = record.peer_name;
  if (record.state == SocketState::kPeerGone) {
    CKPT_TRY_ASSIGN(gone, open_socket(AF_UNIX, SOCK_DGRAM, 0));
    CKPT_TRY(names_.bind_name(gone.get(), name));
    target = gone.get();
  } else if (record.state == SocketState::kConnected) {
    auto peer = static_cast<size_t>(record.peer);
    if (!work_.is_usable(peer)) return {};  // its reason is given
    target = work_.fds[peer].get(), name = work_.records[peer].name;
    if (name.empty()) return Error(Code::kUnsupported, subject_of(record), "is connected to a socket that has no name");
  } else {
    return {};
  }
  CKPT_TRY_ASSIGN(CallResult result, connect_unix(work_.fds[index].get(), target, name, {}));
  if (result.value < 0)
    return sys_error(-result.value, subject_of(record), "cannot be connected again to " + name_text(name));
  return {};
}

Result<void> UnixBuilder::connect_outside(size_t index) {
  const Socket& record = work_.records[index];
  // Who stands at that name by now is for its user to choose: ckpt's own rights must not come into it.
  CKPT_TRY_ASSIGN(int result,
                  connect_with(work_.rights_of(record.uid, record.gid), work_.fds[index].get(), record.peer_name));
  if (result < 0)
    return sys_error(-result, subject_of(record),
                     "cannot be connected again to " + name_text(record.peer_name) + ", which is outside");
  return {};
}

void UnixBuilder::listen_all() {
  for (size_t i = 0; i < work_.records.size(); ++i) {
    if (is_unix(i) && work_.is_usable(i) && work_.records[i].state == SocketState::kListening)
      work_.check(i, listen_one(i));
  }
}

Result<void> UnixBuilder::listen_one(size_t index) {
  const Socket& record = work_.records[index];
  int fd = work_.fds[index].get();
  CKPT_TRY_ASSIGN(CallResult result,
                  run_as(record.peer_credentials, [&] { return ::listen(fd, record.backlog) == 0 ? 0 : -errno; }));
  if (result.value < 0) return sys_error(-result.value, subject_of(record), "cannot listen");
  work_.note_number(record, result, record.peer_credentials.pid);
  for (int client : record.pending) {
    const Socket& other = work_.records[static_cast<size_t>(client)];
    if (!work_.is_usable(static_cast<size_t>(client))) continue;
    CKPT_TRY_ASSIGN(result,
                    connect_unix(work_.fds[static_cast<size_t>(client)].get(), fd, record.name, other.connector));
    if (result.value < 0)
      return sys_error(-result.value, subject_of(other), "cannot be connected again to " + name_text(record.name));
    work_.note_number(record, result, other.connector.pid);
  }
  return {};
}

void UnixBuilder::finish_all() {
  for (size_t i = 0; i < work_.records.size(); ++i) {
    if (is_unix(i) && work_.is_usable(i)) work_.check(i, finish_one(i));
  }
}

Result<void> UnixBuilder::finish_one(size_t index) {
  const Socket& record = work_.records[index];
  int fd = work_.fds[index].get();
  // A peer that is closed with something unread leaves ECONNRESET behind.
  if (record.reset && ends_.count(index) != 0) (void)::send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  ends_.erase(index);
  CKPT_TRY(shut_down(fd, record));
  return set_options(fd, record, true, work_.notes);
}

}  // namespace ckpt::restore
