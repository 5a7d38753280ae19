// TCP connections, made in repair mode: no packet leaves before Sockets::release.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "lib/state/sockets/restore_inet.h"
#include "lib/state/sockets/restore_internal.h"

namespace ckpt::restore {

using proc::plain_name;
using store::Socket;
using store::SocketState;
using store::TcpConnection;

namespace {

// Options of a SYN, as TCP_REPAIR_OPTIONS takes them.
constexpr uint32_t kOptionMss = 2, kOptionScale = 3, kOptionSack = 4, kOptionTimestamps = 8;
constexpr int kLastAck = 9, kCloseWait = 8, kClosing = 11;

/// The first two by settle_receive_buffer: by now the kernel may have made them larger. The last is for a connection
/// that is still to be made.
constexpr std::array<std::string_view, 3> kNotOfConnections = {"SO_RCVBUF", "TCP_WINDOW_CLAMP", "TCP_FASTOPEN_CONNECT"};

bool received_fin(const TcpConnection& tcp) {
  return tcp.state == kCloseWait || tcp.state == kLastAck || tcp.state == kClosing;
}

template <class T>
Result<void> set_tcp(int fd, int option, const T& value, const char* what) {
  if (::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value) != 0) return sys_error("", what);
  return {};
}

Result<void> set_sequence(int fd, int queue, uint32_t sequence) {
  CKPT_TRY(set_tcp(fd, TCP_REPAIR_QUEUE, queue, "cannot choose a queue of the connection"));
  return set_tcp(fd, TCP_QUEUE_SEQ, sequence, "cannot set a sequence number");
}

Result<void> agree(int fd, const TcpConnection& tcp) {
  std::vector<tcp_repair_opt> agreed;
  if (tcp.sack) agreed.push_back({kOptionSack, 0});
  if (tcp.has_window_scale)
    agreed.push_back(
        {kOptionScale, static_cast<uint32_t>(tcp.send_scale) | static_cast<uint32_t>(tcp.receive_scale) << 16});
  if (tcp.timestamps) agreed.push_back({kOptionTimestamps, 0});
  agreed.push_back({kOptionMss, tcp.mss});
  if (::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_OPTIONS, agreed.data(),
                   static_cast<socklen_t>(agreed.size() * sizeof agreed[0])) != 0)
    return sys_error("", "cannot set what both ends have agreed on");
  if (!tcp.timestamps) return {};
  return set_tcp(fd, TCP_TIMESTAMP, tcp.timestamp, "cannot set the clock of the connection");
}

Result<void> fill_queue(int fd, int queue, ByteSpan bytes) {
  CKPT_TRY(set_tcp(fd, TCP_REPAIR_QUEUE, queue, "cannot choose a queue of the connection"));
  constexpr size_t kPart = 64 * 1024;
  for (size_t at = 0; at < bytes.size();) {
    ssize_t sent = ::send(fd, bytes.data() + at, std::min(kPart, bytes.size() - at), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent <= 0) return sys_error("", "cannot fill a queue of the connection");
    at += static_cast<size_t>(sent);
  }
  return {};
}

Result<void> set_window(int fd, const TcpConnection& tcp) {
  if (!tcp.has_window) return {};
  tcp_repair_window window{};
  window.snd_wl1 = tcp.window_sequence, window.snd_wnd = tcp.send_window,
  window.max_window = std::max(tcp.max_window, tcp.send_window);
  window.rcv_wnd = tcp.receive_window, window.rcv_wup = tcp.receive_window_update;
  // The FIN that was received counts here, and comes again only on release: inside of the window, whose end stays.
  auto after = [](uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; };
  if (after(window.rcv_wup, tcp.receive_sequence)) {
    window.rcv_wnd += window.rcv_wup - tcp.receive_sequence;
    window.rcv_wup = tcp.receive_sequence;
  }
  return set_tcp(fd, TCP_REPAIR_WINDOW, window, "cannot set the windows of the connection");
}

Result<void> bind_and_connect(int fd, const Socket& socket) {
  CKPT_TRY(bind_inet(fd, socket));
  if (::connect(fd, reinterpret_cast<const sockaddr*>(socket.peer_name.data()),
                static_cast<socklen_t>(socket.peer_name.size())) == 0)
    return {};
  Error error = sys_error("", "cannot be connected again to " + name_text(socket.peer_name));
  if (error.sys_errno == EADDRNOTAVAIL) error.code = Code::kBusy;  // the pair of addresses is in use
  return error;
}

int recorded_option(const Socket& socket, std::string_view name, int otherwise) {
  for (const auto& option : socket.options) {
    int value = 0;
    if (option.name != name || option.value.size() != sizeof value) continue;
    std::memcpy(&value, option.value.data(), sizeof value);
    return value;
  }
  return otherwise;
}

/// What the peer may still send into the promised window must find as much room as it would have found, and before the
/// first packet comes: a window that grew while the buffer was large cannot be taken back. Where a segment finds no
/// room the kernel closes the window before its promised end (ICSK_ACK_NOMEM). From then on it refuses the segments
/// that are under way, with the acknowledgements and window updates in them, and believes no update of the peer's that
/// is older than those: the connection stands still until the receiver reads, for good where it waits to write first.
Result<void> settle_receive_buffer(int fd, const Socket& socket) {
  const TcpConnection& tcp = socket.tcp;
  const uint64_t used = receive_memory(fd), used_then = std::max(tcp.receive_memory, tcp.receive_size);
  const auto recorded = static_cast<uint64_t>(std::max(recorded_option(socket, "SO_RCVBUF", 0), 0));
  uint64_t size = recorded + (used > used_then ? used - used_then : 0);
  const uint32_t promised = tcp.receive_window_update + tcp.receive_window - tcp.receive_sequence;
  if (tcp.has_window && static_cast<int32_t>(promised) > 0) size = std::max(size, used + promised);
  if (recorded != 0) CKPT_TRY(set_receive_buffer(fd, std::min<uint64_t>(size, INT_MAX - 1)));
  // The kernel may make it larger again, where it might before. That of the other queue is still in use.
  const int locks = recorded_option(socket, "SO_BUF_LOCK", -1);
  const int both = locks | SOCK_SNDBUF_LOCK;
  if (locks >= 0 && ::setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &both, sizeof both) != 0)
    return sys_error("", "cannot set SO_BUF_LOCK");
  const int clamp = recorded_option(socket, "TCP_WINDOW_CLAMP", 0);
  return clamp > 0 ? set_tcp(fd, TCP_WINDOW_CLAMP, clamp, "cannot set TCP_WINDOW_CLAMP") : Result<void>();
}

Result<void> restore_reuse(int fd, const Socket& socket) {
  for (const auto& option : socket.options) {
    if (option.name == "SO_REUSEADDR" && ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, option.value.data(),
                                                      static_cast<socklen_t>(option.value.size())) != 0)
      return sys_error(subject_of(socket), "cannot set SO_REUSEADDR");
  }
  return {};
}

template <class IsWanted>
bool wait_for_state(int fd, IsWanted is_wanted) {
  for (int i = 0; i < 500; ++i) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    if (is_wanted(info.tcpi_state)) return true;
    timespec moment{0, 1'000'000};
    ::nanosleep(&moment, nullptr);
  }
  return false;
}

bool wait_for_fin(int fd) {
  return wait_for_state(fd, [](int state) {
    constexpr int kTimeWait = 6, kClose = 7;
    TcpConnection now;
    now.state = state;
    return received_fin(now) || state == kClose || state == kTimeWait;
  });
}

}  // namespace

/// A connection that a reset has ended: nothing else leaves the addresses of both ends behind. In repair mode all of it
/// stays on this machine.
Result<void> InetBuilder::end_connection(size_t index) {
  const Socket& socket = work_.records[index];
  int fd = work_.fds[index].get(), on = TCP_REPAIR_ON, off = TCP_REPAIR_OFF_NO_WP, error = 0;
  constexpr uint32_t kSequence = 1;
  std::vector<std::byte> unread;
  if (socket.content_size != 0) {
    CKPT_TRY_ASSIGN(unread, work_.sources.read_content(socket));
  }
  if (unread.size() != socket.content_size)
    return Error(Code::kCorrupt, subject_of(socket), "its content is not in the image");
  widen_buffers(fd, unread.size());
  CKPT_TRY(set_tcp(fd, TCP_REPAIR, on, "cannot enter repair mode (TCP_REPAIR), which needs CAP_NET_ADMIN"));
  CKPT_TRY(set_sequence(fd, TCP_SEND_QUEUE, kSequence));
  CKPT_TRY(set_sequence(fd, TCP_RECV_QUEUE, kSequence));
  CKPT_TRY(turn_on_for_name(index));
  CKPT_TRY(bind_and_connect(fd, socket));
  if (!unread.empty()) CKPT_TRY(fill_queue(fd, TCP_RECV_QUEUE, unread));
  const uint32_t next = kSequence + static_cast<uint32_t>(unread.size());
  const bool after_end = socket.error == EPIPE;
  if (after_end) {
    CKPT_TRY(inject_segment(socket.name, socket.peer_name, {next, kSequence, true, false}));
    if (!wait_for_fin(fd)) return Error(Code::kBusy, "", "it cannot be ended again");
  }
  const uint32_t last = next + (after_end ? 1 : 0);
  CKPT_TRY(inject_segment(socket.name, socket.peer_name, {last, kSequence, false, true}));
  constexpr int kClose = 7;
  if (!wait_for_state(fd, [](int state) { return state == kClose; }))
    return Error(Code::kBusy, "", "it cannot be ended again");
  socklen_t size = sizeof error;
  if (socket.error == 0 && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
    return sys_error("", "cannot take its error");  // the reset's
  CKPT_TRY(set_tcp(fd, TCP_REPAIR, off, "cannot leave repair mode"));
  return restore_reuse(fd, socket);
}

Result<void> InetBuilder::make_established(size_t index) {
  const Socket& socket = work_.records[index];
  const TcpConnection& tcp = socket.tcp;
  std::vector<std::byte> content;
  if (socket.content_size != 0) {
    CKPT_TRY_ASSIGN(content, work_.sources.read_content(socket));
  }
  if (content.size() != socket.content_size || content.size() != tcp.receive_size + tcp.send_size)
    return Error(Code::kCorrupt, subject_of(socket), "its content is not in the image");
  CKPT_TRY_ASSIGN(work_.fds[index], open_socket(socket.family, socket.type, socket.protocol));
  int fd = work_.fds[index].get(), on = TCP_REPAIR_ON, none = TCP_NO_QUEUE;
  CKPT_TRY(set_options(fd, socket, false, work_.notes));
  widen_buffers(fd, content.size());
  CKPT_TRY(set_tcp(fd, TCP_REPAIR, on, "cannot enter repair mode (TCP_REPAIR), which needs CAP_NET_ADMIN"));
  CKPT_TRY(set_sequence(fd, TCP_SEND_QUEUE, tcp.send_sequence - static_cast<uint32_t>(tcp.send_size)));
  CKPT_TRY(set_sequence(fd, TCP_RECV_QUEUE, tcp.receive_sequence - static_cast<uint32_t>(tcp.receive_size)));
  CKPT_TRY(turn_on_for_name(index));
  CKPT_TRY(bind_and_connect(fd, socket));
  CKPT_TRY(agree(fd, tcp));
  ByteSpan all(content);
  CKPT_TRY(fill_queue(fd, TCP_RECV_QUEUE, all.first(tcp.receive_size)));
  CKPT_TRY(fill_queue(fd, TCP_SEND_QUEUE, all.subspan(tcp.receive_size, tcp.send_size - tcp.unsent_size)));
  CKPT_TRY(set_tcp(fd, TCP_REPAIR_QUEUE, none, "cannot leave the queues of the connection"));
  CKPT_TRY(set_window(fd, tcp));
  CKPT_TRY(settle_receive_buffer(fd, socket));
  Sockets::Connection connection;
  connection.index = index, connection.record = &socket;
  ByteSpan unsent = all.last(tcp.unsent_size);
  connection.unsent.assign(unsent.begin(), unsent.end());
  for (const Socket& other : work_.records) {
    bool is_peer = other.tcp.state != 0 && other.state == SocketState::kConnected;
    connection.peer_in_tree |= is_peer && plain_name(other.name) == plain_name(socket.peer_name) &&
                               plain_name(other.peer_name) == plain_name(socket.name);
  }
  out_.connections_.push_back(std::move(connection));
  return {};
}

Result<void> Sockets::release(ProgressSink& notes) {
  for (const Connection& connection : connections_) {
    int fd = fds[connection.index].get(), off = TCP_REPAIR_OFF;  // asks the peer for a sign of life
    CKPT_TRY(set_tcp(fd, TCP_REPAIR, off, "cannot leave repair mode"));
    CKPT_TRY(restore_reuse(fd, *connection.record));
  }
  for (const Connection& connection : connections_) {
    const Socket& socket = *connection.record;
    const TcpConnection& tcp = socket.tcp;
    int fd = fds[connection.index].get();
    const uint32_t no_limit = UINT_MAX;  // in place of the system's, too
    CKPT_TRY(set_tcp(fd, TCP_NOTSENT_LOWAT, no_limit, "cannot set TCP_NOTSENT_LOWAT"));
    ssize_t sent = ::send(fd, connection.unsent.data(), connection.unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (!connection.unsent.empty() && sent != static_cast<ssize_t>(connection.unsent.size()))
      return sys_error(subject_of(socket), "what it had not sent yet cannot be sent");
    CKPT_TRY(shut_down(fd, socket));
    if (received_fin(tcp) && !connection.peer_in_tree) {
      Segment fin{tcp.receive_sequence, tcp.send_sequence - static_cast<uint32_t>(tcp.send_size), true, false};
      CKPT_TRY(inject_segment(socket.name, socket.peer_name, fin));
    }
  }
  for (const Connection& connection : connections_) {
    const Socket& socket = *connection.record;
    int fd = fds[connection.index].get();
    if (received_fin(socket.tcp) && !wait_for_fin(fd))
      notes.note(subject_of(socket) + ": the end of what its peer sends (FIN) is still on its way");
    CKPT_TRY(set_options(fd, socket, true, notes, kNotOfConnections));
  }
  connections_.clear();
  return {};
}

}  // namespace ckpt::restore
