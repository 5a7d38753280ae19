#include "lib/state/sockets/restore.h"

#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "lib/base/checked.h"
#include "lib/proc/socket_options.h"
#include "lib/state/sockets/restore_internal.h"

namespace ckpt::restore {

using store::Socket;
using store::SocketState;

namespace {

constexpr int kBufferSizes[] = {SO_SNDBUF, SO_RCVBUF};

/// Setting a buffer size doubles it.
Result<void> set_buffer(int fd, int option, int size) {
  int half = size / 2;
  int force = option == SO_SNDBUF ? SO_SNDBUFFORCE : SO_RCVBUFFORCE;
  if (::setsockopt(fd, SOL_SOCKET, force, &half, sizeof half) == 0) return {};
  if (::setsockopt(fd, SOL_SOCKET, option, &half, sizeof half) != 0)
    return sys_error("", "cannot set the size of a buffer");
  return {};
}

Result<void> set_option(int fd, const store::SocketOption& option, const proc::SocketOptionKind& kind,
                        const std::string& subject) {
  std::array<uint8_t, 256> now;
  auto size = static_cast<socklen_t>(now.size());
  if (::getsockopt(fd, kind.level, kind.option, now.data(), &size) == 0 &&
      std::equal(option.value.begin(), option.value.end(), now.begin(), now.begin() + size))
    return {};
  bool is_buffer = kind.level == SOL_SOCKET && (kind.option == SO_SNDBUF || kind.option == SO_RCVBUF);
  if (is_buffer && option.value.size() == sizeof(int)) {
    int value;
    std::memcpy(&value, option.value.data(), sizeof value);
    return set_buffer(fd, kind.option, value);
  }
  if (::setsockopt(fd, kind.level, kind.option, option.value.data(), static_cast<socklen_t>(option.value.size())) != 0)
    return sys_error(subject, fmt::format("cannot set {}", option.name));
  return {};
}

Result<void> set_owner(int fd, const Socket& socket) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) return sys_error(subject_of(socket), "cannot be described");
  if ((st.st_uid != socket.uid || st.st_gid != socket.gid) && ::fchown(fd, socket.uid, socket.gid) != 0)
    return sys_error(subject_of(socket), "cannot be given its owner");
  if ((st.st_mode & 07777) != socket.mode && ::fchmod(fd, socket.mode) != 0)
    return sys_error(subject_of(socket), "cannot be given its mode");
  return {};
}

Result<void> set_filter(int fd, const Socket& socket) {
  if (socket.filter.empty()) return {};
  std::vector<sock_filter> code(socket.filter.size() / sizeof(sock_filter));
  std::memcpy(code.data(), socket.filter.data(), code.size() * sizeof(sock_filter));
  sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
    return sys_error(subject_of(socket), "cannot be given its filter");
  return {};
}

Result<void> make_netlink(SocketWork& work, size_t index) {
  const Socket& socket = work.records[index];
  CKPT_TRY_ASSIGN(work.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  int fd = work.fds[index].get();
  CKPT_TRY(set_options(fd, socket, false, work.notes));
  auto name = proc::address_of<sockaddr_nl>(socket.name);
  name.nl_groups = 0;
  if (name.nl_pid != 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0)
    return sys_error(subject_of(socket), "cannot bind its netlink port");
  for (uint32_t group : socket.groups) {
    if (::setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) != 0)
      return sys_error(subject_of(socket), fmt::format("cannot join group {}", group));
  }
  auto peer = proc::address_of<sockaddr_nl>(socket.peer_name);
  if ((peer.nl_pid != 0 || peer.nl_groups != 0) && ::connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof peer) != 0)
    return sys_error(subject_of(socket), "cannot be connected");
  return set_options(fd, socket, true, work.notes);
}

Result<void> make_packet(SocketWork& work, size_t index) {
  const Socket& socket = work.records[index];
  CKPT_TRY_ASSIGN(work.fds[index], open_socket(socket.family, socket.type, 0));  // the protocol comes with bind
  int fd = work.fds[index].get();
  CKPT_TRY(set_options(fd, socket, false, work.notes));
  auto name = proc::address_of<sockaddr_ll>(socket.name);  // getsockname left out the room for a hardware address
  bool bound = name.sll_protocol != 0 || name.sll_ifindex != 0;
  if (bound && ::bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) != 0)
    return sys_error(subject_of(socket), "cannot be bound to its interface");
  return set_options(fd, socket, true, work.notes);
}

}  // namespace

std::string subject_of(const Socket& socket) {
  const char* kind = socket.family == AF_UNIX      ? "unix socket"
                     : socket.family == AF_NETLINK ? "netlink socket"
                     : socket.family == AF_PACKET  ? "packet socket"
                     : socket.type == SOCK_STREAM  ? "TCP socket"
                     : socket.type == SOCK_DGRAM   ? "UDP socket"
                                                   : "raw socket";
  std::string name = name_text(socket.name);
  return fmt::format("{} {}{}", kind, socket.inode, name.empty() ? "" : " (" + name + ")");
}

Result<UniqueFd> open_socket(int family, int type, int protocol) {
  UniqueFd fd(::socket(family, type | SOCK_CLOEXEC, protocol));
  if (!fd)
    return sys_error("",
                     fmt::format("cannot make a socket of family {}, type {} and protocol {}", family, type, protocol));
  return fd;
}

Result<void> set_options(int fd, const Socket& socket, bool late, ProgressSink& notes,
                         std::span<const std::string_view> without) {
  if (!late) CKPT_TRY(set_owner(fd, socket));
  // What it holds may have come before the filter.
  if (late != socket.messages.empty()) CKPT_TRY(set_filter(fd, socket));
  for (const auto& option : socket.options) {
    const auto* kind = proc::find_socket_option(option.name);
    if (kind == nullptr)
      return Error(Code::kUnsupported, subject_of(socket),
                   "has an option that this ckpt does not know: " + option.name);
    if (kind->late != late || std::find(without.begin(), without.end(), option.name) != without.end()) continue;
    auto done = set_option(fd, option, *kind, subject_of(socket));
    if (!done && done.error().code != Code::kUnsupported) return done;
    if (!done) notes.note(done.error().text());
  }
  return {};
}

uint32_t receive_memory(int fd) {
  std::array<uint32_t, SK_MEMINFO_VARS> info{};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info.data(), &size) == 0 ? info[SK_MEMINFO_RMEM_ALLOC] : 0;
}

Result<void> set_receive_buffer(int fd, uint64_t size) {
  return set_buffer(fd, SO_RCVBUF, static_cast<int>(size + size % 2));
}

void widen_buffers(int fd, uint64_t bytes) {
  // Each message costs its own head as well; the sizes that count are set at the end.
  int size = checked_cast<int>(bytes * 4 + (1 << 20)).value_or(1 << 30);
  for (int option : kBufferSizes) (void)set_buffer(fd, option, size);
}

Result<void> shut_down(int fd, const Socket& socket) {
  for (int how : {SHUT_RD, SHUT_WR}) {
    bool wanted = (socket.shutdown & (how == SHUT_RD ? 1 : 2)) != 0;
    if (wanted && ::shutdown(fd, how) != 0 && errno != ENOTCONN)
      return sys_error(subject_of(socket), "cannot be shut down");
  }
  return {};
}

void SocketWork::fail(size_t index, const Error& error) {
  if (!failed.insert(index).second) return;
  Error named = error;
  if (named.subject.empty()) named.subject = subject_of(records[index]);
  reasons.add(named);
}

bool SocketWork::check(size_t index, const Result<void>& result) {
  if (!result) fail(index, result.error());
  return result.has_value();
}

void SocketWork::note(const Socket& socket, const std::string& text) { notes.note(subject_of(socket) + ": " + text); }

void SocketWork::note_number(const Socket& socket, const CallResult& result, int pid) {
  if (!result.had_number)
    note(socket,
         fmt::format("its peer credentials (SO_PEERCRED) cannot say process {}: the number could not be had", pid));
}

int SocketWork::right(int descriptor) const {
  auto own = by_descriptor.find(descriptor);
  if (own != by_descriptor.end()) return fds[own->second].get();
  return sources.descriptor ? sources.descriptor(descriptor) : -1;
}

Rights SocketWork::rights_of(uint32_t uid, uint32_t gid) const {
  std::optional<Rights> known = sources.rights_of_user ? sources.rights_of_user(uid) : std::nullopt;
  if (!known) return {uid, gid, {}, uid == 0 ? ~uint64_t{0} : 0};
  known->groups.push_back(known->gid);
  known->gid = gid;
  return *known;
}

std::string check_sockets(const std::vector<Socket>& records) {
  for (size_t i = 0; i < records.size(); ++i) {
    const Socket& s = records[i];
    std::string place = fmt::format("sockets[{}]", i);
    auto leads = [&](int index) {
      return index >= 0 && static_cast<size_t>(index) < records.size() && static_cast<size_t>(index) != i;
    };
    bool needs_peer = s.family == AF_UNIX && s.state == SocketState::kConnected;
    // A datagram socket may be connected to itself.
    bool to_itself = s.type == SOCK_DGRAM && s.peer == static_cast<int>(i);
    if (needs_peer && !leads(s.peer) && !to_itself) return place + ".peer: refers to an entry that is not there";
    if (needs_peer && s.type != SOCK_DGRAM && records[static_cast<size_t>(s.peer)].peer != static_cast<int>(i))
      return place + ".peer: is not mutual";
    if (needs_peer &&
        (records[static_cast<size_t>(s.peer)].family != AF_UNIX || records[static_cast<size_t>(s.peer)].type != s.type))
      return place + ".peer: is a socket of another kind";
    for (int client : s.pending) {
      if (!leads(client) || records[static_cast<size_t>(client)].state != SocketState::kPending)
        return place + ".pending: refers to an entry that does not wait";
    }
    uint64_t total = s.tcp.receive_size;
    bool fits = s.tcp.unsent_size <= s.tcp.send_size && !__builtin_add_overflow(total, s.tcp.send_size, &total);
    for (const auto& message : s.messages) fits = fits && !__builtin_add_overflow(total, message.size, &total);
    if (!fits || total != s.content_size) return place + ".content_size: is not the sum of its parts";
    if (s.error != 0 && !store::can_fail_again(s, s.error)) return place + ".error: is none that such a socket has";
    if (s.filter.size() % sizeof(sock_filter) != 0) return place + ".filter: is not made of whole instructions";
  }
  return "";
}

Sockets make_sockets(const std::vector<Socket>& records, const SocketSources& sources, Reasons& reasons,
                     ProgressSink& notes) {
  Sockets out;
  out.fds.resize(records.size());
  std::string fault = check_sockets(records);
  if (!fault.empty()) {
    reasons.add(Code::kCorrupt, fault);
    return out;
  }
  SocketWork work{records, sources, reasons, notes, out.fds, {}, {}};
  for (size_t i = 0; i < records.size(); ++i) work.by_descriptor[records[i].descriptor] = i;
  InetBuilder(work, out).run();
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].family == AF_NETLINK) work.check(i, make_netlink(work, i));
    if (records[i].family == AF_PACKET) work.check(i, make_packet(work, i));
  }
  // Last: their queues may carry any of the others.
  UnixBuilder(work).run();
  return out;
}

}  // namespace ckpt::restore
