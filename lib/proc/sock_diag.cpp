#include "lib/proc/sock_diag.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/packet_diag.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "lib/base/bytes.h"
#include "lib/base/unique_fd.h"

namespace ckpt::proc {

namespace {

/// The reader asks for at most this much at once; a dump message of the kernel is no larger.
constexpr size_t kBufferSize = 64 * 1024;

template <class T>
T value_of(ByteSpan bytes) {
  T out{};
  if (bytes.size() >= sizeof out) std::memcpy(&out, bytes.data(), sizeof out);
  return out;
}

void take_attribute(int type, ByteSpan data, UnixSocketInfo& out) {
  switch (type) {
    case UNIX_DIAG_PEER:
      out.has_peer = true;
      out.peer = value_of<uint32_t>(data);
      break;
    case UNIX_DIAG_ICONS:
      for (size_t at = 0; at + 4 <= data.size(); at += 4) out.pending.push_back(value_of<uint32_t>(data.subspan(at)));
      break;
    case UNIX_DIAG_RQLEN: {
      auto lengths = value_of<unix_diag_rqlen>(data);
      constexpr int kListen = 10;
      (out.state == kListen ? out.backlog : out.send_queue) = lengths.udiag_wqueue;
      break;
    }
    case UNIX_DIAG_SHUTDOWN:
      out.shutdown = value_of<uint8_t>(data);
      break;
    case UNIX_DIAG_VFS: {
      // The kernel's own device number: 12 bits of major, 20 of minor.
      auto file = value_of<unix_diag_vfs>(data);
      out.file_device = makedev(file.udiag_vfs_dev >> 20, file.udiag_vfs_dev & 0xfffff);
      out.file_inode = file.udiag_vfs_ino;
      break;
    }
    default:
      break;
  }
}

using TakeMessage = std::function<void(ByteSpan)>;

/// One buffer of the answer. True: it was the last.
Result<bool> take_messages(ByteSpan buffer, const TakeMessage& take) {
  for (size_t at = 0; at + sizeof(nlmsghdr) <= buffer.size();) {
    auto head = value_of<nlmsghdr>(buffer.subspan(at));
    if (head.nlmsg_len < sizeof head || at + head.nlmsg_len > buffer.size()) break;
    ByteSpan body = buffer.subspan(at + sizeof head, head.nlmsg_len - sizeof head);
    if (head.nlmsg_type == NLMSG_DONE) return true;
    if (head.nlmsg_type == NLMSG_ERROR) {
      int error = -value_of<nlmsgerr>(body).error;
      // No handler for the family is ENOENT.
      return sys_error(error == ENOENT ? EOPNOTSUPP : error, "", "cannot list sockets (NETLINK_SOCK_DIAG)");
    }
    if (head.nlmsg_type == SOCK_DIAG_BY_FAMILY) take(body);
    at += NLMSG_ALIGN(head.nlmsg_len);
  }
  return false;
}

/// Every socket that the request is about, a message each. `flags`: NLM_F_DUMP, or 0 where the request names one
/// socket.
template <class Request>
Result<void> list_sockets(const Request& request, const TakeMessage& take, uint16_t flags = NLM_F_DUMP) {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd) return sys_error("", "cannot ask for the state of sockets (NETLINK_SOCK_DIAG)");
  struct {
    nlmsghdr head;
    Request request;
  } ask{};
  ask.head.nlmsg_len = sizeof ask, ask.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.head.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
  ask.request = request;
  if (::send(fd.get(), &ask, sizeof ask, 0) != sizeof ask) return sys_error("", "cannot ask for the state of sockets");
  std::vector<std::byte> buffer(kBufferSize);
  for (;;) {
    ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return sys_error("", "cannot read the state of sockets");
    CKPT_TRY_ASSIGN(bool last, take_messages(ByteSpan(buffer).first(static_cast<size_t>(got)), take));
    if (last || flags == 0) return {};
  }
}

template <class Take>
void each_attribute(ByteSpan message, size_t start, const Take& take) {
  for (size_t at = start; at + sizeof(nlattr) <= message.size();) {
    auto attribute = value_of<nlattr>(message.subspan(at));
    if (attribute.nla_len < sizeof(nlattr) || at + attribute.nla_len > message.size()) break;
    take(attribute.nla_type, message.subspan(at + sizeof(nlattr), attribute.nla_len - sizeof(nlattr)));
    at += NLA_ALIGN(attribute.nla_len);
  }
}

UnixSocketInfo parse_unix_socket(ByteSpan message) {
  UnixSocketInfo out;
  auto head = value_of<unix_diag_msg>(message);
  out.inode = head.udiag_ino, out.type = head.udiag_type, out.state = head.udiag_state;
  each_attribute(message, sizeof head, [&](int type, ByteSpan data) { take_attribute(type, data, out); });
  return out;
}

/// Each as setsockopt wants it (struct packet_mreq), as often as it was asked for.
void take_memberships(ByteSpan data, PacketSocketInfo& out) {
  for (size_t at = 0; at + sizeof(packet_diag_mclist) <= data.size(); at += sizeof(packet_diag_mclist)) {
    auto member = value_of<packet_diag_mclist>(data.subspan(at));
    struct {
      int interface;
      uint16_t type, size;
      uint8_t address[sizeof member.pdmc_addr];
    } request{static_cast<int>(member.pdmc_index), member.pdmc_type, member.pdmc_alen, {}};
    std::memcpy(request.address, member.pdmc_addr, sizeof request.address);
    auto* raw = reinterpret_cast<const uint8_t*>(&request);
    out.memberships.insert(out.memberships.end(), member.pdmc_count, std::vector<uint8_t>(raw, raw + sizeof request));
  }
}

PacketSocketInfo parse_packet_socket(ByteSpan message) {
  PacketSocketInfo out;
  each_attribute(message, sizeof(packet_diag_msg), [&](int type, ByteSpan data) {
    if (type == PACKET_DIAG_INFO) out.copy_threshold = value_of<packet_diag_info>(data).pdi_copy_thresh;
    if (type == PACKET_DIAG_MCLIST) take_memberships(data, out);
    out.has_ring |= type == PACKET_DIAG_RX_RING || type == PACKET_DIAG_TX_RING;
    out.has_fanout |= type == PACKET_DIAG_FANOUT;
  });
  return out;
}

}  // namespace

namespace {

unix_diag_req unix_request() {
  unix_diag_req out{};
  out.sdiag_family = AF_UNIX, out.udiag_states = ~0u;
  out.udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN | UDIAG_SHOW_VFS;
  return out;
}

}  // namespace

Result<UnixSocketInfo> read_unix_socket(uint64_t inode) {
  constexpr uint32_t kAnyCookie = ~0u;
  unix_diag_req request = unix_request();
  request.udiag_ino = static_cast<uint32_t>(inode);
  request.udiag_cookie[0] = request.udiag_cookie[1] = kAnyCookie;
  UnixSocketInfo out;
  CKPT_TRY(list_sockets(request, [&](ByteSpan message) { out = parse_unix_socket(message); }, 0));
  if (out.inode != inode) return fail(Code::kNotFound, "", "there is no such unix socket here");
  return out;
}

Result<std::map<uint64_t, UnixSocketInfo>> read_unix_sockets() {
  std::map<uint64_t, UnixSocketInfo> out;
  CKPT_TRY(list_sockets(unix_request(), [&](ByteSpan message) {
    UnixSocketInfo socket = parse_unix_socket(message);
    if (socket.inode != 0) out[socket.inode] = std::move(socket);
  }));
  return out;
}

Result<std::map<uint64_t, int>> read_inet_shutdowns(int family, int protocol) {
  inet_diag_req_v2 request{};
  request.sdiag_family = static_cast<uint8_t>(family), request.sdiag_protocol = static_cast<uint8_t>(protocol);
  request.idiag_states = ~0u;
  std::map<uint64_t, int> out;
  CKPT_TRY(list_sockets(request, [&](ByteSpan message) {
    const uint64_t inode = value_of<inet_diag_msg>(message).idiag_inode;
    each_attribute(message, sizeof(inet_diag_msg), [&](int type, ByteSpan data) {
      if (type == INET_DIAG_SHUTDOWN) out[inode] = value_of<uint8_t>(data);
    });
  }));
  return out;
}

namespace {

/// Port and address of a struct sockaddr_in or _in6, as inet_diag has them.
void put_end(const SocketName& name, __be16& port, __be32 (&address)[4]) {
  port = port_of(name);
  if (address_of<sockaddr>(name).sa_family == AF_INET6) {
    const auto six = address_of<sockaddr_in6>(name);
    std::memcpy(address, &six.sin6_addr, sizeof six.sin6_addr);
  } else {
    address[0] = address_of<sockaddr_in>(name).sin_addr.s_addr;
  }
}

}  // namespace

Result<bool> has_tcp_signatures(int fd, const SocketName& name, const SocketName& peer) {
  inet_diag_req_v2 request{};
  request.sdiag_family = static_cast<uint8_t>(address_of<sockaddr>(name).sa_family),
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0u, request.idiag_ext = 1 << (INET_DIAG_INFO - 1);  // the keys come with it
  put_end(name, request.id.idiag_sport, request.id.idiag_src);
  put_end(peer, request.id.idiag_dport, request.id.idiag_dst);
  socklen_t size = sizeof request.id.idiag_cookie, interface_size = sizeof request.id.idiag_if;
  if (::getsockopt(fd, SOL_SOCKET, SO_COOKIE, request.id.idiag_cookie, &size) != 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &request.id.idiag_if, &interface_size) != 0)
    return sys_error("TCP socket", "cannot be described");
  bool out = false;
  auto asked = list_sockets(request, [&](ByteSpan message) {
    each_attribute(message, sizeof(inet_diag_msg), [&](int type, ByteSpan) { out = out || type == INET_DIAG_MD5SIG; });
  }, 0);
  // One that is not there any more, or neither listens nor is connected.
  if (!asked && asked.error().sys_errno != EOPNOTSUPP && asked.error().sys_errno != ESTALE)
    return std::move(asked).error();
  return out;
}

bool has_tcp_authentication(int fd) {
  constexpr int kTcpAoInfo = 40;  // TCP_AO_INFO, which is an error where there are no keys
  uint64_t info[6] = {};         // struct tcp_ao_info_opt
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, kTcpAoInfo, info, &size) == 0;
}

Result<std::map<uint64_t, PacketSocketInfo>> read_packet_sockets() {
  packet_diag_req request{};
  request.sdiag_family = AF_PACKET;
  request.pdiag_show = PACKET_SHOW_INFO | PACKET_SHOW_MCLIST | PACKET_SHOW_RING_CFG | PACKET_SHOW_FANOUT;
  std::map<uint64_t, PacketSocketInfo> out;
  CKPT_TRY(list_sockets(request, [&](ByteSpan message) {
    out[value_of<packet_diag_msg>(message).pdiag_ino] = parse_packet_socket(message);
  }));
  return out;
}

}  // namespace ckpt::proc
