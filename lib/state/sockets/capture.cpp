#include "lib/state/sockets/capture.h"

#include <fmt/format.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "lib/base/io.h"
#include "lib/proc/host.h"
#include "lib/state/sockets/capture_internal.h"
#include "lib/state/sockets/capture_unix.h"

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
  if (s.family == AF_PACKET && s.type == SOCK_PACKET) return "a socket of type SOCK_PACKET, which is not supported";
  if (s.family == AF_UNIX || s.family == AF_NETLINK || s.family == AF_PACKET) return "";
  if (s.family != AF_INET && s.family != AF_INET6)
    return fmt::format("a socket of {}, which is not supported", family_name(s.family));
  if (s.protocol == kMptcp) return "an MPTCP socket, which is not supported";
  bool known = (s.type == SOCK_STREAM && s.protocol == IPPROTO_TCP) || s.type == SOCK_RAW ||
               (s.type == SOCK_DGRAM && (s.protocol == IPPROTO_UDP || s.protocol == IPPROTO_UDPLITE ||
                                         s.protocol == IPPROTO_ICMP || s.protocol == IPPROTO_ICMPV6));
  return known ? "" : fmt::format("a socket of type {} and protocol {}, which is not supported", s.type, s.protocol);
}

/// Of its network namespace (SO_NETNS_COOKIE); 0: the kernel does not say (before 5.14).
uint64_t namespace_cookie(int fd) {
  constexpr int kCookie = 71;
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return ::getsockopt(fd, SOL_SOCKET, kCookie, &cookie, &size) == 0 ? cookie : 0;
}

/// True when the socket belongs to another network namespace than ckpt, whose cookie is `ours`. Without the right to
/// ask: false.
bool is_of_other_namespace(int fd, uint64_t ours) {
  if (ours != 0) return namespace_cookie(fd) != ours;
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
    if (unsupported.empty() && is_of_other_namespace(fd_, all_.namespace_cookie_))
      unsupported = "a socket of another network namespace: run ckpt inside it (nsenter -n)";
    if (!unsupported.empty()) return all_.block(index_, unsupported), Result<void>();
    CKPT_TRY_ASSIGN(auto obstacles, take_socket_options(fd_, all_.options_.contents, socket_));
    for (auto& obstacle : obstacles) all_.block(index_, std::move(obstacle));
    if (socket_.family == AF_UNIX) return take_unix();
    if (socket_.family == AF_NETLINK) return take_netlink();
    if (socket_.family == AF_PACKET) CKPT_TRY(take_packet());
    if (socket_.family != AF_PACKET)
      socket_.foreign_address = proc::has_address(socket_.name) && !proc::is_local_address(socket_.name);
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
    if (!queue->obstacle.empty()) all_.block_for_now(index_, "a socket: " + queue->obstacle);
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
    if (socket_.type == SOCK_DGRAM) socket_.shutdown |= shutdown_by_diag();
    if (socket_.peer_name.empty()) CKPT_TRY(take_portless_peer());
    socket_.state = socket_.peer_name.empty() ? SocketState::kUnconnected : SocketState::kConnected;
    if ((events & POLLIN) != 0 && socket_.type == SOCK_DGRAM && !all_.has_right(kNetRaw))
      all_.note(index_, "datagrams that it has not read yet are lost in a restore without CAP_NET_RAW, as here");
    bool peekable =
        socket_.type == SOCK_DGRAM && (socket_.protocol == IPPROTO_UDP || socket_.protocol == IPPROTO_UDPLITE);
    const bool to_send = socket_.family != AF_PACKET && socket_memory(fd_).to_send != 0;
    if (to_send && (!peekable || has_unfinished_datagram(fd_, socket_.family)))
      all_.block_for_now(index_,
                         peekable ? "a UDP socket with a datagram that is still being put together (UDP_CORK, MSG_MORE)"
                                  : "a socket with packets that it has not sent yet");
    take_error();
    if (!all_.options_.contents) return {};
    if (peekable) return take_queue_of_datagrams((events & POLLERR) != 0);
    if ((events & POLLIN) != 0)
      all_.note(index_,
                "packets that it has received and not read yet are not carried over, as a network may lose them");
    return {};
  }

  void take_error() {
    const bool tcp = socket_.type == SOCK_STREAM;
    auto [obstacle, note] = take_pending_error(fd_, socket_);
    if (!note.empty()) all_.note(index_, note);
    if (!obstacle.empty() && tcp && all_.options_.tcp_close) all_.note(index_, obstacle + ", which is lost");
    else if (!obstacle.empty()) all_.block_for_now(index_, std::move(obstacle), tcp ? "--tcp-close" : "");
    if (socket_.error != 0 && !all_.has_right(tcp ? kNetAdmin : kNetRaw))
      all_.note(index_, fmt::format("an error that it has not been told yet is lost in a restore without {}, as here",
                                    tcp ? "CAP_NET_ADMIN" : "CAP_NET_RAW"));
  }

  /// getpeername knows of no connection without a port.
  Result<void> take_portless_peer() {
    const bool raw = socket_.type == SOCK_RAW,
               icmp = socket_.protocol == IPPROTO_ICMP || socket_.protocol == IPPROTO_ICMPV6;
    const bool six = socket_.family == AF_INET6;
    if ((!six && socket_.family != AF_INET) || (!raw && !icmp)) return {};
    auto list =
        io::read_file(std::string("/proc/thread-self/net/") + (raw ? "raw" : "icmp") + (six ? "6" : ""), kMaxList);
    if (!list) return list.error().code == Code::kNotFound ? Result<void>() : Result<void>(list.error());
    socket_.peer_name = portless_peer(*list, socket_.family, socket_.inode);
    // Of an address that is good on one link only, the list does not say which.
    const auto name = proc::address_of<sockaddr_in6>(socket_.peer_name);
    if (six && IN6_IS_ADDR_LINKLOCAL(&name.sin6_addr))
      all_.block(index_, "a raw socket that is connected to an address of one link (fe80::), which is not supported");
    return {};
  }

  /// Where the kernel does not tell (no udp_diag), poll has said what it knows.
  int shutdown_by_diag() {
    const std::pair<int, int> kind{socket_.family, socket_.protocol};
    auto [known, fresh] = all_.shutdowns_.try_emplace(kind);
    auto found = fresh ? proc::read_inet_shutdowns(kind.first, kind.second) : std::map<uint64_t, int>();
    if (fresh && found) known->second = std::move(*found);
    auto of = known->second.find(socket_.inode);
    return of == known->second.end() ? 0 : of->second;
  }

  Result<void> take_packet() {
    if (!all_.packet_) {
      CKPT_TRY_ASSIGN(all_.packet_, proc::read_packet_sockets());
    }
    const proc::PacketSocketInfo& info = (*all_.packet_)[socket_.inode];
    if (info.has_ring)
      all_.block(index_, "a packet socket with a ring (PACKET_RX_RING, PACKET_TX_RING), which is not supported");
    if (info.has_fanout) all_.block(index_, "a packet socket of a group (PACKET_FANOUT), which is not supported");
    auto* raw = reinterpret_cast<const uint8_t*>(&info.copy_threshold);
    if (info.copy_threshold != 0) set_option("PACKET_COPY_THRESH", {raw, raw + sizeof info.copy_threshold});
    // The kernel shows the newest first.
    for (auto it = info.memberships.rbegin(); it != info.memberships.rend(); ++it)
      socket_.options.push_back({"PACKET_ADD_MEMBERSHIP", *it});
    return {};
  }

  /// In place of what getsockopt said of it, if anything.
  void set_option(const char* name, std::vector<uint8_t> value) {
    std::erase_if(socket_.options, [&](const store::SocketOption& option) { return option.name == name; });
    socket_.options.push_back({name, std::move(value)});
  }

  /// The kernel has per-socket state for some kinds that no call tells of, and that a message made: queues of the
  /// firewall.
  bool is_bound_to_firewall() {
    const uint32_t port = proc::address_of<sockaddr_nl>(socket_.name).nl_pid;
    for (const char* list : {"nfnetlink_queue", "nfnetlink_log"}) {
      auto text = io::read_file(std::string("/proc/thread-self/net/netfilter/") + list, kMaxList);
      std::istringstream lines(text ? *text : "");
      uint32_t number = 0, owner = 0;
      for (std::string line; std::getline(lines, line);) {
        if (std::istringstream(line) >> number >> owner && owner == port) return true;
      }
    }
    return false;
  }

  Result<void> take_netlink() {
    if (socket_.protocol == NETLINK_NETFILTER && is_bound_to_firewall())
      all_.block(index_,
                 "a netlink socket that receives packets from the firewall (NFQUEUE, NFLOG), which is not supported");
    if ((poll_socket(fd_) & POLLIN) != 0 && all_.options_.contents)
      all_.block_for_now(index_, "a netlink socket with messages that have not been read yet");
    take_error();
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

  /// Of what --tcp-close allows. With --tcp-established the processes will do away with it if they go on.
  Result<void> block_tcp(std::string what) {
    if (all_.options_.tcp_established) all_.block_for_now(index_, std::move(what), "--tcp-close");
    else all_.block(index_, std::move(what), "--tcp-close");
    return {};
  }

  Result<void> take_tcp_socket() {
    const auto& options = all_.options_;
    CKPT_TRY_ASSIGN(uint32_t waiting, take_tcp_state(fd_, socket_));
    if (!options.contents) {
      auto is_signed = proc::has_tcp_signatures(fd_, socket_.name, socket_.peer_name);
      if (!is_signed)
        all_.note(index_, "whether it has signatures (TCP_MD5SIG), which are not carried over, cannot be asked here: " +
                              is_signed.error().text());
      if (is_signed && *is_signed)
        return all_.block(index_, "a TCP socket with signatures (TCP_MD5SIG), whose keys the kernel shows nobody"),
               Result<void>();
      if (proc::has_tcp_authentication(fd_))
        return all_.block(index_, "a TCP socket with authentication (TCP-AO), whose keys the kernel shows nobody"),
               Result<void>();
    }
    // Of a connection the first is what both ends have come to, and the second counts no more, nor can it be set.
    const bool unconnected = socket_.state == SocketState::kUnconnected || socket_.state == SocketState::kListening;
    for (const char* name : {"TCP_MAXSEG", "TCP_FASTOPEN_CONNECT"}) {
      if (!unconnected) std::erase_if(socket_.options, [&](const auto& option) { return option.name == name; });
    }
    if (waiting != 0) {
      std::string what = fmt::format("a listening TCP socket ({}) with {} connections that have not been accepted yet",
                                     name_text(socket_.name), waiting);
      if (!options.tcp_close) return block_tcp(what);
      all_.note(index_, what + ": they are lost");
    }
    if (socket_.state == SocketState::kClosed && !all_.has_right(kNetAdmin))
      all_.note(index_, "the addresses of its ended connection are lost in a restore without CAP_NET_ADMIN, as here");
    if (socket_.state == SocketState::kClosed) return take_ended();
    if (socket_.state != SocketState::kConnected) return {};
    if (options.tcp_close) {
      socket_.state = SocketState::kClosed, socket_.tcp = {}, socket_.peer_name.clear();
      return {};
    }
    take_error();
    std::string what = fmt::format("a TCP connection, {} to {}", name_text(socket_.name), name_text(socket_.peer_name));
    constexpr int kSynSent = 2, kSynReceived = 3;
    if (socket_.tcp.state == kSynSent) return take_connecting();
    if (socket_.tcp.state == kSynReceived)
      return block_tcp("a TCP connection that is being made from both ends, which is not supported");
    if (!options.tcp_established) return all_.block(index_, what, "--tcp-established"), Result<void>();
    if (!all_.has_right(kNetAdmin))
      return all_.block(index_, what + ": it takes CAP_NET_ADMIN over its network namespace", "--tcp-close"),
             Result<void>();
    if (has_saved_request(fd_))
      all_.note(index_, "the request that made its connection (TCP_SAVED_SYN), unread so far, is not carried over");
    if (options.contents) {
      CKPT_TRY_ASSIGN(OptionGuard * guard, all_.guard());
      CKPT_TRY(take_tcp_queues(*guard, fd_, socket_, bytes_));
    }
    socket_.content_size = bytes_.size();
    return {};
  }

  /// What it has not read yet, too.
  Result<void> take_ended() {
    socket_.peer_name = socket_former_peer(fd_, socket_.family);
    take_error();
    if ((poll_socket(fd_) & POLLPRI) != 0)
      return block_tcp("a TCP connection that has ended with urgent data (MSG_OOB) that has not been read yet");
    int unread = 0;
    if (::ioctl(fd_, FIONREAD, &unread) != 0 || unread <= 0) return {};
    const std::string what =
        fmt::format("a TCP connection that has ended, with {} bytes that have not been read yet", unread);
    if (socket_.peer_name.empty() || !all_.has_right(kNetAdmin)) {
      if (!all_.options_.tcp_close) return block_tcp(what + ": it takes CAP_NET_ADMIN over its network namespace");
      return all_.note(index_, what + ": they are lost"), Result<void>();
    }
    if (!all_.options_.contents) return {};
    CKPT_TRY_ASSIGN(OptionGuard * guard, all_.guard());
    CKPT_TRY_ASSIGN(const auto no_offset, borrow_no_peek_offset(*guard, fd_));
    bytes_.resize(static_cast<size_t>(unread));
    if (::recv(fd_, bytes_.data(), bytes_.size(), MSG_PEEK | MSG_DONTWAIT) != unread)
      return block_tcp(what + ", and cannot be read at once");
    socket_.content_size = socket_.tcp.receive_size = bytes_.size();
    return {};
  }

  /// A request that nobody has answered is as good as lost: the restore makes another one.
  Result<void> take_connecting() {
    CKPT_TRY_ASSIGN(const bool has_data, has_data_in_request(fd_));
    if (has_data)
      return block_tcp("a TCP connection that is being made, with data in its request (MSG_FASTOPEN)");
    socket_.peer_name = socket_former_peer(fd_, socket_.family);
    if (socket_.peer_name.empty()) return block_tcp("a TCP connection that is being made to nobody knows whom");
    socket_.state = SocketState::kConnecting, socket_.tcp = {};
    return {};
  }

  static constexpr int kNetAdmin = 12, kNetRaw = 13;

  SocketCapture& all_;
  size_t index_;
  int fd_;
  Socket& socket_;
  std::vector<std::byte>& bytes_;
};

bool SocketCapture::has_right(int capability) {
  const auto known = rights_.find(capability);
  if (known != rights_.end()) return known->second;
  return rights_[capability] = proc::has_capability_over("net", capability);
}

Result<void> SocketCapture::run() {
  namespace_cookie_ = namespace_cookie(UniqueFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)).get());
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
    if (is_after(received, sent.send_sequence - static_cast<uint32_t>(sent.unsent_size)))
      sent.unsent_size = sent.send_sequence - received;
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

void SocketCapture::block_for_now(size_t index, std::string what, std::string flag) {
  block(index, std::move(what), std::move(flag));
  blockers.back().passes = true;
}

void SocketCapture::note(size_t index, const std::string& what) { notes.push_back(open_[index].subject + ": " + what); }

}  // namespace ckpt::capture
