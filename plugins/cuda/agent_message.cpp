#include "plugins/cuda/agent_message.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace ckpt::agent {

namespace {

constexpr size_t kMostDescriptors = 8;  ///< of one message; the kernel closes what does not fit, and says so

/// The first descriptor that came along; the others are closed.
int take_descriptor(msghdr& header) {
  int first = -1;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      if (first < 0) {
        first = fd;
      } else {
        ::close(fd);
      }
    }
  }
  return first;
}

}  // namespace

ssize_t send_message(int socket, const Message& message, std::string_view payload, int fd) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec io[] = {{const_cast<Message*>(&message), sizeof message}, {const_cast<char*>(payload.data()), payload.size()}};
  msghdr header{};
  header.msg_iov = io;
  header.msg_iovlen = 2;
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &header, MSG_NOSIGNAL);
}

ssize_t receive_message(int socket, Received* out) {
  *out = {};
  out->payload.resize(kMaxPayload);
  // Room for more than one descriptor: in the padding behind a single one the kernel would put a second, unseen.
  alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
  iovec io[] = {{&out->message, sizeof out->message}, {out->payload.data(), out->payload.size()}};
  msghdr header{};
  header.msg_iov = io;
  header.msg_iovlen = 2;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  if (got < 0) return got;
  out->fd = take_descriptor(header);
  out->whole = static_cast<size_t>(got) >= sizeof out->message && (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  out->payload.resize(out->whole ? got - sizeof out->message : 0);
  return got;
}

}  // namespace ckpt::agent
