#include "lib/state/sockets/tcp_repair.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace ckpt::capture {

Result<RepairMode> RepairMode::enter(OptionGuard& guard, int fd) {
  int on = TCP_REPAIR_ON, reuse = 0;
  socklen_t size = sizeof reuse;
  if (::getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, &size) != 0)
    return sys_error("TCP connection", "cannot read SO_REUSEADDR");
  // Put back in this order.
  size_t first = guard.remember(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP);
  size_t second = guard.remember(fd, SOL_SOCKET, SO_REUSEADDR, reuse);
  RepairMode out(std::make_unique<Entered>(Entered{&guard, fd, reuse, {first, second}}));
  if (::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0) {
    Error error = sys_error("TCP connection", "cannot enter repair mode (TCP_REPAIR)");
    return error.sys_errno == EPERM ? std::move(error).with_hint("this needs CAP_NET_ADMIN") : error;
  }
  return out;
}

void RepairMode::forget() {
  for (size_t slot : entered_->slots) entered_->guard->forget(slot);
  entered_.reset();
}

void RepairMode::keep() {
  if (entered_) forget();
}

RepairMode::~RepairMode() {
  if (!entered_) return;
  int off = TCP_REPAIR_OFF_NO_WP;
  (void)::setsockopt(entered_->fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off);
  (void)::setsockopt(entered_->fd, SOL_SOCKET, SO_REUSEADDR, &entered_->reuse, sizeof entered_->reuse);
  forget();
}

Result<TcpHold> TcpHold::enter(const std::vector<int>& fds) {
  CKPT_TRY_ASSIGN(OptionGuard guard, OptionGuard::create(std::max<size_t>(fds.size(), 1) * RepairMode::kSlots));
  TcpHold out(std::move(guard));
  for (int fd : fds) {
    UniqueFd ours(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!ours) return sys_error("TCP connection", "cannot be duplicated");
    CKPT_TRY_ASSIGN(RepairMode mode, RepairMode::enter(*out.guard_, ours.get()));
    out.fds_.push_back(std::move(ours));
    out.modes_.push_back(std::move(mode));
  }
  return out;
}

void TcpHold::keep() {
  for (RepairMode& mode : modes_) mode.keep();
}

}  // namespace ckpt::capture
