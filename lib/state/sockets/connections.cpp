#include "lib/state/sockets/connections.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>

#include "lib/base/hex.h"

namespace ckpt::capture {

namespace {

Result<proc::SocketName> name_of(int fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (ask(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return sys_error("socket", "cannot read its address");
  auto* bytes = reinterpret_cast<const uint8_t*>(&address);
  return proc::SocketName(bytes, bytes + size);
}

}  // namespace

Result<bool> HeldConnections::hold(const std::vector<UniqueFd>& connections) {
  std::set<Pair> all = held_;
  for (const UniqueFd& fd : connections) {
    CKPT_TRY_ASSIGN(proc::SocketName local, name_of(fd.get(), ::getsockname));
    auto remote = name_of(fd.get(), ::getpeername);
    if (!remote && remote.error().sys_errno == ENOTCONN) continue;  // it has ended since
    if (!remote) return std::move(remote).error();
    all.emplace(std::move(local), std::move(*remote));
  }
  if (all.size() == held_.size()) return false;
  std::vector<proc::FilteredConnection> filtered;
  for (const auto& [local, remote] : all) filtered.push_back({local, remote});
  CKPT_TRY_ASSIGN(std::string id, random_hex(8));
  CKPT_TRY_ASSIGN(proc::PacketFilter filter, proc::PacketFilter::create(id, filtered));
  // The old one stays until all is over: to remove it takes the kernel a tenth of a second, and the tree may stand
  // still.
  if (filter_) replaced_.push_back(std::move(*filter_));
  filter_.emplace(std::move(filter));
  id_ = std::move(id);
  held_ = std::move(all);
  return true;
}

Result<void> HeldConnections::silence(const std::vector<UniqueFd>& connections) {
  std::vector<int> fds;
  for (const UniqueFd& fd : connections) fds.push_back(fd.get());
  if (fds.empty()) return {};
  if (filter_) {
    CKPT_TRY(filter_->keep());
    stays_ = true;
  }
  CKPT_TRY_ASSIGN(TcpHold silent, TcpHold::enter(fds));
  silent_.emplace(std::move(silent));
  return {};
}

void HeldConnections::keep() {
  if (silent_) silent_->keep();
  stays_ = false;
}

void HeldConnections::let_go() {
  filter_.reset();
  replaced_.clear(), held_.clear(), id_.clear();
}

HeldConnections::~HeldConnections() {
  silent_.reset();
  if (stays_) (void)proc::remove_packet_filter(id_);
}

}  // namespace ckpt::capture
