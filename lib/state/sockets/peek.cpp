#include "lib/state/sockets/peek.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace ckpt::capture {

namespace {

constexpr size_t kMaxRights = 253;  // SCM_MAX_FD
constexpr int kUdpGro = 104;

template <class T>
T payload(const cmsghdr& head) {
  T out{};
  std::memcpy(&out, CMSG_DATA(&head), sizeof out);
  return out;
}

template <class T>
std::vector<uint8_t> octets_of(const T& value) {
  std::vector<uint8_t> out(sizeof value);
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

void take_control(cmsghdr& head, PeekedMessage& out) {
  // Descriptors of messages that the socket asked for itself (SO_PASSPIDFD) are closed again.
  constexpr int kScmPidfd = 4;
  if (head.cmsg_level == SOL_SOCKET && (head.cmsg_type == SCM_RIGHTS || head.cmsg_type == kScmPidfd)) {
    size_t count = (head.cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(&head) + i * sizeof(int), sizeof fd);
      UniqueFd owned(fd);
      if (head.cmsg_type == SCM_RIGHTS) out.rights.push_back(std::move(owned));
    }
  } else if (head.cmsg_level == SOL_SOCKET && head.cmsg_type == SCM_CREDENTIALS) {
    out.credentials = payload<ucred>(head);
  } else if (head.cmsg_level == IPPROTO_UDP && head.cmsg_type == kUdpGro) {
    out.part_size = static_cast<size_t>(std::max(payload<int>(head), 0));
  } else if (head.cmsg_level == IPPROTO_IP && head.cmsg_type == IP_PKTINFO) {
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_addr = payload<in_pktinfo>(head).ipi_addr;
    out.to = octets_of(to);
  } else if (head.cmsg_level == IPPROTO_IPV6 && head.cmsg_type == IPV6_PKTINFO) {
    auto info = payload<in6_pktinfo>(head);
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6, to.sin6_addr = info.ipi6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr)) to.sin6_scope_id = info.ipi6_ifindex;
    out.to = octets_of(to);
  }
}

}  // namespace

Result<BorrowedOption> BorrowedOption::set(OptionGuard& guard, int fd, int level, int option, int value) {
  BorrowedOption out;
  int before = 0;
  socklen_t size = sizeof before;
  if (::getsockopt(fd, level, option, &before, &size) != 0) return out;
  out.borrowed_ = std::make_unique<Borrowed>(
      Borrowed{&guard, guard.remember(fd, level, option, before), fd, level, option, before});
  if (::setsockopt(fd, level, option, &value, sizeof value) != 0)
    return sys_error("socket", "cannot set an option for a moment");
  return out;
}

Result<BorrowedOption> borrow_no_peek_offset(OptionGuard& guard, int fd) {
  return BorrowedOption::set(guard, fd, SOL_SOCKET, SO_PEEK_OFF, -1);
}

BorrowedOption::~BorrowedOption() {
  if (!borrowed_) return;
  (void)::setsockopt(borrowed_->fd, borrowed_->level, borrowed_->option, &borrowed_->before, sizeof borrowed_->before);
  borrowed_->guard->forget(borrowed_->slot);
}

Result<std::optional<PeekedMessage>> peek_at(int fd, int offset, MutableByteSpan buffer) {
  if (::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) != 0)
    return sys_error("socket", "cannot set its peek offset");
  sockaddr_storage from{};
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxRights * sizeof(int)) + 2048> control{};
  msghdr message{};
  message.msg_name = &from, message.msg_namelen = sizeof from;
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control.data(), message.msg_controllen = control.size();
  ssize_t got = ::recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<PeekedMessage>();
  if (got < 0) return sys_error("socket", "cannot peek into its queue");
  PeekedMessage out;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head))
    take_control(*head, out);
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return Error(Code::kNoRoom, "socket",
                 "cannot take all descriptors in flight: the limit of open files of ckpt is too low");
  out.size = static_cast<size_t>(got);
  out.truncated = (message.msg_flags & MSG_TRUNC) != 0;
  auto* raw = reinterpret_cast<const uint8_t*>(&from);
  out.from.assign(raw, raw + std::min<size_t>(message.msg_namelen, sizeof from));
  return std::optional<PeekedMessage>(std::move(out));
}

}  // namespace ckpt::capture
