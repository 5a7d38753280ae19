#include "lib/capture/sockets.h"

#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "lib/base/io.h"
#include "lib/capture/sockets_internal.h"
#include "lib/capture/sockets_unix.h"

namespace ckpt::capture {

using store::Socket;
using store::SocketState;

namespace {

constexpr int kMptcp = 262;
constexpr int kOtherNamespace = 0x894C;  // SIOCGSKNS

std::string family_name(int family) {
  switch (family) {
    case AF_ALG:
      return "AF_ALG (kernel cryptography)";
    case AF_VSOCK:
      return "AF_VSOCK (virtual machine)";
    case AF_BLUETOOTH:
      return "AF_BLUETOOTH";
    case AF_XDP:
      return "AF_XDP";
    case AF_CAN:
      return "AF_CAN";
    case AF_TIPC:
      return "AF_TIPC";
    case AF_SMC:
      return "AF_SMC";
    case AF_KEY:
      return "AF_KEY (IPsec)";
    case AF_QIPCRTR:
      return "AF_QIPCRTR";
    default:
      return fmt::format("family {}", family);
  }
}

/// Empty when sockets of the kind are carried over.
std::string unsupported_kind(const Socket& s) {
  if (s.family == AF_UNIX || s.family == AF_NETLINK || s.family == AF_PACKET) return "";
  if (s.family != AF_INET && s.family != AF_INET6)
    return fmt::format("a socket of {}, which is not supported", family_name(s.family));
  if (s.protocol == kMptcp) return "an MPTCP socket, which is not supported";
  bool known = (s.type == SOCK_STREAM && s.protocol == IPPROTO_TCP) || s.type == SOCK_RAW ||
               (s.type == SOCK_DGRAM && (s.protocol == IPPROTO_UDP || s.protocol == IPPROTO_UDPLITE ||
                                         s.protocol == IPPROTO_ICMP || s.protocol == IPPROTO_ICMPV6));
  return known ? "" : fmt::format("a socket of type {} and protocol {}, which is not supported", s.type, s.protocol);
}

/// True when the socket belongs to another network namespace than ckpt. Without the right to ask: false.
bool is_of_other_namespace(int fd) {
  UniqueFd theirs(::ioctl(fd, kOtherNamespace));
  struct stat a {
  }, b{};
  if (!theirs || ::fstat(theirs.get(), &a) != 0 || ::stat("/proc/thread-self/ns/net", &b) != 0) return false;
  return a.st_ino != b.st_ino;
}

}  // namespace

/// Describes one socket after the other; what depends on the others is left to UnixLinks.
class SocketReader {
 public:
  SocketReader(SocketCapture& all, size_t index)
      : all_(all), index_(index), fd_(all.fd(index)), socket_(all.sockets[index]), bytes_(all.contents[index]) {}

  Result<void> run() {
    CKPT_TRY(take_common());
    std::string unsupported = unsupported_kind(socket_);
    if (unsupported.empty() && is_of_other_namespace(fd_))
      unsupported = "a socket of another network namespace: run ckpt inside it (nsenter -n)";
    if (!unsupported.empty()) return all_.block(index_, unsupported), Result<void>();
    CKPT_TRY_ASSIGN(auto obstacles, take_socket_options(fd_, socket_));
    for (auto& obstacle : obstacles) all_.block(index_, std::move(obstacle));
    if (socket_.family == AF_UNIX) return take_unix();
    if (socket_.family == AF_NETLINK) return take_netlink();
    if (socket_.type == SOCK_STREAM) return take_tcp_socket();
    return take_datagrams();
  }

 private:
  Result<void> take_common() {
    auto need = [&](int option, int& out) -> Result<void> {
      auto value = int_option(fd_, SOL_SOCKET, option);
      if (!value) return sys_error(all_.open_[index_].subject, "cannot be described");
      out = *value;
      return {};
    };
    CKPT_TRY(need(SO_DOMAIN, socket_.family));
    CKPT_TRY(need(SO_TYPE, socket_.type));
    CKPT_TRY(need(SO_PROTOCOL, socket_.protocol));
    CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd_, all_.open_[index_].subject));
    socket_.inode = st.st_ino;
    socket_.mode = st.st_mode & 07777, socket_.uid = st.st_uid, socket_.gid = st.st_gid;
    socket_.name = socket_name(fd_);
    if (socket_.family == AF_UNIX && proc::unix_name(socket_.name).empty()) socket_.name.clear();
    socket_.peer_name = socket_peer_name(fd_);
    return {};
  }

  Result<void> take_unix() {
    CKPT_TRY(take_unix_socket(fd_, socket_));
    if (!all_.options_.contents || socket_.state == SocketState::kListening) return {};
    auto info = all_.unix_.find(socket_.inode);
    if (info != all_.unix_.end() && info->second.state == kTcpListen) return {};
    bool error = (poll_socket(fd_) & POLLERR) != 0;
    socket_.reset = error;
    int size = 0;
    if (socket_.type == SOCK_STREAM && ::ioctl(fd_, FIONREAD, &size) == 0 && size == 0) return {};
    if (socket_.type != SOCK_STREAM) return take_queue_of_datagrams(error);
    CKPT_TRY_ASSIGN(OptionGuard * guard, all_.guard());
    return keep_queue(peek_stream(*guard, fd_));
  }

  Result<void> take_queue_of_datagrams(bool error) {
    if ((poll_socket(fd_) & POLLIN) == 0) return {};
    CKPT_TRY_ASSIGN(OptionGuard * guard, all_.guard());
    return keep_queue(peek_datagrams(*guard, fd_, socket_.family, socket_.type, error));
  }

  Result<void> keep_queue(Result<SocketQueue> queue) {
    if (!queue) return queue.error();
    if (!queue->obstacle.empty()) all_.block(index_, "a socket: " + queue->obstacle);
    for (size_t i = 0; i < queue->messages.size(); ++i) {
      for (UniqueFd& right : queue->rights[i]) {
        CKPT_TRY_ASSIGN(int descriptor, all_.take_right_(std::move(right)));
        queue->messages[i].rights.push_back(descriptor);
      }
    }
    socket_.messages = std::move(queue->messages);
    socket_.content_size = queue->bytes.size();
    bytes_ = std::move(queue->bytes);
    return {};
  }

  Result<void> take_datagrams() {
    CKPT_TRY_ASSIGN(bool all_sources, take_memberships(fd_, socket_));
    if (!all_sources)
      all_.block(index_, "a member of a multicast group with a choice of sources, which is not supported");
    int events = poll_socket(fd_);
    if ((events & POLLRDHUP) != 0) socket_.shutdown |= 1;
    if ((events & POLLHUP) != 0) socket_.shutdown |= 2;
    socket_.state = socket_.peer_name.empty() ? SocketState::kUnconnected : SocketState::kConnected;
    if (!all_.options_.contents) return {};
    bool error = (events & POLLERR) != 0;
    bool peekable =
        socket_.type == SOCK_DGRAM && (socket_.protocol == IPPROTO_UDP || socket_.protocol == IPPROTO_UDPLITE);
    if (peekable && error) all_.note(index_, "its pending error, or queue of errors, is not carried over");
    if (peekable) return take_queue_of_datagrams(error);
    if ((events & POLLIN) != 0)
      all_.note(index_,
                "packets that it has received and not read yet are not carried over, as a network may lose them");
    return {};
  }

  Result<void> take_netlink() {
    if ((poll_socket(fd_) & POLLIN) != 0 && all_.options_.contents)
      all_.block(index_, "a netlink socket with messages that have not been read yet: try again a moment later");
    socklen_t size = 0;
    if (::getsockopt(fd_, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, nullptr, &size) != 0) return {};
    std::vector<uint32_t> bits((size + 3) / 4);
    if (size != 0 && ::getsockopt(fd_, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, bits.data(), &size) != 0)
      return sys_error(all_.open_[index_].subject, "cannot read its groups");
    for (uint32_t i = 0; i < bits.size() * 32; ++i) {
      if ((bits[i / 32] >> (i % 32) & 1) != 0) socket_.groups.push_back(i + 1);
    }
    return {};
  }

  Result<void> take_tcp_socket() {
    const auto& options = all_.options_;
    CKPT_TRY_ASSIGN(uint32_t waiting, take_tcp_state(fd_, socket_));
    if (waiting != 0) {
      std::string what = fmt::format("a listening TCP socket ({}) with {} connections that have not been accepted yet",
                                     name_text(socket_.name), waiting);
      if (!options.tcp_close) return all_.block(index_, what, "--tcp-close"), Result<void>();
      all_.note(index_, what + ": they are lost");
    }
    int unread = 0;
    if (socket_.state == SocketState::kClosed && ::ioctl(fd_, FIONREAD, &unread) == 0 && unread > 0) {
      std::string what =
          fmt::format("a TCP connection that has ended, with {} bytes that have not been read yet", unread);
      if (!options.tcp_close) return all_.block(index_, what, "--tcp-close"), Result<void>();
      all_.note(index_, what + ": they are lost");
    }
    if (socket_.state == SocketState::kClosed && (poll_socket(fd_) & POLLERR) != 0)
      all_.note(index_, "an error of its ended connection that has not been reported yet is not carried over");
    if (socket_.state != SocketState::kConnected) return {};
    if (options.tcp_close) {
      socket_.state = SocketState::kClosed, socket_.tcp = {};
      return {};
    }
    std::string what = fmt::format("a TCP connection, {} to {}", name_text(socket_.name), name_text(socket_.peer_name));
    constexpr int kSynSent = 2, kSynReceived = 3;
    if (socket_.tcp.state == kSynSent || socket_.tcp.state == kSynReceived)
      return all_.block(index_, "a TCP connection that is being made, which is not supported", "--tcp-close"),
             Result<void>();
    if (!options.tcp_established) return all_.block(index_, what, "--tcp-established"), Result<void>();
    if (options.contents) {
      CKPT_TRY_ASSIGN(OptionGuard * guard, all_.guard());
      CKPT_TRY(take_tcp_queues(*guard, fd_, socket_, bytes_));
    }
    socket_.content_size = bytes_.size();
    return {};
  }

  SocketCapture& all_;
  size_t index_;
  int fd_;
  Socket& socket_;
  std::vector<std::byte>& bytes_;
};

Result<void> SocketCapture::run() {
  bool has_unix = false;
  for (const OpenSocket& open : open_)
    has_unix |= int_option(open.fd.get(), SOL_SOCKET, SO_DOMAIN).value_or(0) == AF_UNIX;
  if (has_unix) {
    CKPT_TRY_ASSIGN(unix_, proc::read_unix_sockets());
  }
  // The list grows while queues are read.
  for (size_t i = 0; i < open_.size(); ++i) {
    sockets.emplace_back().descriptor = open_[i].descriptor;
    contents.emplace_back();
    auto done = SocketReader(*this, i).run();
    if (!done) {
      guard_.reset();
      return done;
    }
  }
  auto matched = match_connections();
  guard_.reset();
  CKPT_TRY(matched);
  return UnixLinks(*this).run();
}

Result<void> SocketCapture::take_connection_again(size_t index) {
  CKPT_TRY_ASSIGN(OptionGuard * guarding, guard());
  contents[index].clear();
  CKPT_TRY(take_tcp_queues(*guarding, open_[index].fd.get(), sockets[index], contents[index]));
  sockets[index].content_size = contents[index].size();
  return {};
}

/// Both ends of a connection are taken one after the other, and packets pass in between. What the one has forgotten as
/// received the other must have; what the other has already, the one did send.
Result<void> SocketCapture::match_connections() {
  constexpr int kAttempts = 100;
  std::map<std::pair<std::vector<uint8_t>, std::vector<uint8_t>>, size_t> by_names;
  for (size_t i : established()) by_names[{sockets[i].name, sockets[i].peer_name}] = i;
  auto is_after = [](uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; };
  // An end that is taken again is a sender too, so all are looked at once more.
  bool lost = options_.contents;
  for (int attempt = 0; attempt < kAttempts && lost; ++attempt) {
    lost = false;
    for (const auto& [names, sender] : by_names) {
      auto found = by_names.find({names.second, names.first});
      if (found == by_names.end()) continue;
      const store::TcpConnection& sent = sockets[sender].tcp;
      const uint32_t acknowledged = sent.send_sequence - static_cast<uint32_t>(sent.send_size);
      if (!is_after(acknowledged, sockets[found->second].tcp.receive_sequence)) continue;
      lost = true;
      CKPT_TRY(take_connection_again(found->second));
    }
  }
  if (lost) return fail(Code::kBusy, "TCP connections", "receive without a pause: their state cannot be taken");
  for (const auto& [names, sender] : by_names) {
    auto found = by_names.find({names.second, names.first});
    if (found == by_names.end() || !options_.contents) continue;
    store::TcpConnection& sent = sockets[sender].tcp;
    const uint32_t received = sockets[found->second].tcp.receive_sequence;
    if (is_after(received, sent.send_sequence - static_cast<uint32_t>(sent.unsent_size))) sent.unsent_size = sent.send_sequence - received;
  }
  return {};
}

Result<OptionGuard*> SocketCapture::guard() {
  constexpr size_t kAtOnce = 4;  // of one socket
  if (!guard_) {
    CKPT_TRY_ASSIGN(OptionGuard made, OptionGuard::create(kAtOnce));
    guard_.emplace(std::move(made));
  }
  return &*guard_;
}

std::vector<size_t> SocketCapture::established() const {
  std::vector<size_t> out;
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (sockets[i].tcp.state != 0 && sockets[i].state == SocketState::kConnected) out.push_back(i);
  }
  return out;
}

void SocketCapture::block(size_t index, std::string what, std::string flag) {
  blockers.push_back({open_[index].subject, std::move(what), std::move(flag)});
}

void SocketCapture::note(size_t index, const std::string& what) { notes.push_back(open_[index].subject + ": " + what); }

}  // namespace ckpt::capture
