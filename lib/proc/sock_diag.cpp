#include "lib/proc/sock_diag.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstring>

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

UnixSocketInfo parse_socket(ByteSpan message) {
  UnixSocketInfo out;
  auto head = value_of<unix_diag_msg>(message);
  out.inode = head.udiag_ino, out.type = head.udiag_type, out.state = head.udiag_state;
  for (size_t at = sizeof head; at + sizeof(nlattr) <= message.size();) {
    auto attribute = value_of<nlattr>(message.subspan(at));
    if (attribute.nla_len < sizeof(nlattr) || at + attribute.nla_len > message.size()) break;
    take_attribute(attribute.nla_type, message.subspan(at + sizeof(nlattr), attribute.nla_len - sizeof(nlattr)), out);
    at += NLA_ALIGN(attribute.nla_len);
  }
  return out;
}

/// One buffer of the answer. True: it was the last.
Result<bool> take_messages(ByteSpan buffer, std::map<uint64_t, UnixSocketInfo>& out) {
  for (size_t at = 0; at + sizeof(nlmsghdr) <= buffer.size();) {
    auto head = value_of<nlmsghdr>(buffer.subspan(at));
    if (head.nlmsg_len < sizeof head || at + head.nlmsg_len > buffer.size()) break;
    ByteSpan body = buffer.subspan(at + sizeof head, head.nlmsg_len - sizeof head);
    if (head.nlmsg_type == NLMSG_DONE) return true;
    if (head.nlmsg_type == NLMSG_ERROR) {
      int error = -value_of<nlmsgerr>(body).error;
      // No handler for the family is ENOENT.
      return sys_error(error == ENOENT ? EOPNOTSUPP : error, "", "cannot list unix sockets (unix_diag)");
    }
    if (head.nlmsg_type == SOCK_DIAG_BY_FAMILY && body.size() >= sizeof(unix_diag_msg)) {
      UnixSocketInfo socket = parse_socket(body);
      if (socket.inode != 0) out[socket.inode] = std::move(socket);
    }
    at += NLMSG_ALIGN(head.nlmsg_len);
  }
  return false;
}

}  // namespace

Result<std::map<uint64_t, UnixSocketInfo>> read_unix_sockets() {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd) return sys_error("", "cannot ask for the state of sockets (NETLINK_SOCK_DIAG)");
  struct {
    nlmsghdr head;
    unix_diag_req request;
  } ask{};
  ask.head.nlmsg_len = sizeof ask, ask.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  ask.request.sdiag_family = AF_UNIX, ask.request.udiag_states = ~0u;
  ask.request.udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN | UDIAG_SHOW_VFS;
  if (::send(fd.get(), &ask, sizeof ask, 0) != sizeof ask) return sys_error("", "cannot ask for the state of sockets");
  std::map<uint64_t, UnixSocketInfo> out;
  std::vector<std::byte> buffer(kBufferSize);
  for (;;) {
    ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return sys_error("", "cannot read the state of sockets");
    CKPT_TRY_ASSIGN(bool last, take_messages(ByteSpan(buffer).first(static_cast<size_t>(got)), out));
    if (last) return out;
  }
}

}  // namespace ckpt::proc
