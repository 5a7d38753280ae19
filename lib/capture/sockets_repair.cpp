#include "lib/capture/sockets_repair.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace ckpt::capture {

Result<RepairMode> RepairMode::enter(int fd) {
  int on = TCP_REPAIR_ON, reuse = 0;
  socklen_t size = sizeof reuse;
  if (::getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, &size) != 0) return sys_error("TCP connection", "cannot read SO_REUSEADDR");
  if (::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0) {
    Error error = sys_error("TCP connection", "cannot enter repair mode (TCP_REPAIR)");
    return error.sys_errno == EPERM ? std::move(error).with_hint("this needs CAP_NET_ADMIN") : error;
  }
  return RepairMode(fd, reuse);
}

RepairMode::~RepairMode() {
  if (fd_ < 0) return;
  int off = TCP_REPAIR_OFF_NO_WP;
  (void)::setsockopt(fd_, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off);
  (void)::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &reuse_, sizeof reuse_);
}

Result<TcpHold> TcpHold::enter(const std::vector<int>& fds) {
  TcpHold out;
  for (int fd : fds) {
    UniqueFd ours(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!ours) return sys_error("TCP connection", "cannot be duplicated");
    CKPT_TRY_ASSIGN(RepairMode mode, RepairMode::enter(ours.get()));
    out.modes_.push_back(std::move(mode));
    out.fds_.push_back(std::move(ours));
  }
  return out;
}

void TcpHold::keep() {
  for (RepairMode& mode : modes_) mode.keep();
}

}  // namespace ckpt::capture
