#include "lib/base/fd_message.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "lib/base/result.h"

namespace ckpt {

ssize_t send_with_fds(int socket, ByteSpan data, std::span<const int> fds) {
  CKPT_ASSERT(fds.size() <= kMostFdsOfMessage);
  iovec bytes{const_cast<std::byte*>(data.data()), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFdsOfMessage * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes, message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control, message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_with_fds(int socket, MutableByteSpan data, std::vector<UniqueFd>& fds) {
  fds.clear();
  iovec bytes{data.data(), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFdsOfMessage * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  ssize_t got;
  do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  for (cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at < header->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return got;
}

}  // namespace ckpt
