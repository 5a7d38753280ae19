#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lib/state/sockets/restore_internal.h"

namespace ckpt::restore {

namespace {

using store::Socket;
using store::SocketMessage;

/// The control part of a message: credentials, then descriptors. Laid out before the call: a child may only send it.
struct Control {
  std::vector<char> bytes;
  size_t credentials_size = 0;

  Control(const SocketMessage& message, const std::vector<int>& rights) {
    if (message.has_credentials) {
      ucred sender{message.sender_pid, message.sender_uid, message.sender_gid};
      append(SCM_CREDENTIALS, &sender, sizeof sender);
    }
    credentials_size = bytes.size();
    if (!rights.empty()) append(SCM_RIGHTS, rights.data(), rights.size() * sizeof(int));
  }

 private:
  void append(int type, const void* data, size_t size) {
    size_t start = bytes.size();
    bytes.resize(start + CMSG_SPACE(size));
    cmsghdr head{};
    head.cmsg_level = SOL_SOCKET, head.cmsg_type = type, head.cmsg_len = CMSG_LEN(size);
    std::memcpy(bytes.data() + start, &head, sizeof head);
    std::memcpy(bytes.data() + start + CMSG_LEN(0), data, size);
  }
};

/// A stream may take a message in parts: the descriptors go with the first, the credentials with each. Plain system
/// calls.
int send_whole(int fd, msghdr head, iovec part, size_t credentials_size, int flags) {
  head.msg_iov = &part, head.msg_iovlen = 1;
  do {
    ssize_t count = ::sendmsg(fd, &head, flags);
    if (count < 0) return -errno;
    part.iov_base = static_cast<char*>(part.iov_base) + count;
    part.iov_len -= static_cast<size_t>(count);
    head.msg_controllen = credentials_size;
  } while (part.iov_len > 0);
  return 0;
}

}  // namespace

Result<void> send_unix(SocketWork& work, const Socket& record, const SocketMessage& message, ByteSpan bytes,
                       const UnixRoute& route) {
  std::vector<int> rights;
  for (int right : message.rights) {
    rights.push_back(work.right(right));
    if (rights.back() < 0)
      return Error(Code::kCorrupt, subject_of(record), "carries a descriptor that could not be made");
  }
  Control control(message, rights);
  SocketName target = route.target_name;
  CKPT_TRY_ASSIGN(UniqueFd file, reach_unix(route.target, target));
  msghdr head{};
  if (route.target >= 0) head.msg_name = target.data(), head.msg_namelen = static_cast<socklen_t>(target.size());
  head.msg_control = control.bytes.data(), head.msg_controllen = control.bytes.size();
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  int flags = MSG_NOSIGNAL | MSG_DONTWAIT | (message.out_of_band ? MSG_OOB : 0);
  int result = 0;
  if (message.has_credentials) {
    store::SocketCredentials sender{message.sender_pid, message.sender_uid, message.sender_gid, {}};
    CKPT_TRY_ASSIGN(CallResult called, run_as(sender, [&] {
                      return send_whole(route.sender, head, part, control.credentials_size, flags);
                    }));
    result = called.value;
    if (result == -EPERM || result == -ESRCH) {
      work.note(record, "a message that it has not read yet cannot carry its sender's credentials");
      Control plain(SocketMessage(), rights);
      head.msg_control = plain.bytes.data(), head.msg_controllen = plain.bytes.size();
      result = send_whole(route.sender, head, part, 0, flags);
    }
  } else {
    result = send_whole(route.sender, head, part, 0, flags);
  }
  if (result == -EAGAIN)
    return Error(Code::kNoRoom, subject_of(record),
                 "its queue cannot be filled again: the system allows too few messages (net.unix.max_dgram_qlen)");
  if (result < 0) return sys_error(-result, subject_of(record), "its queue cannot be filled again");
  return {};
}

}  // namespace ckpt::restore
