#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "lib/state/sockets/capture_internal.h"
#include "lib/state/sockets/tcp_repair.h"

namespace ckpt::capture {

using store::Socket;
using store::SocketState;
using store::TcpConnection;

namespace {

constexpr int kEstablished = 1, kClose = 7, kListen = 10;
constexpr int kFinWait1 = 4, kFinWait2 = 5, kCloseWait = 8, kLastAck = 9, kClosing = 11;
constexpr int kOutQueue = 0x5411, kOutQueueUnsent = 0x894B;  // SIOCOUTQ, SIOCOUTQNSD

/// A FIN takes a number of the sequence, and a place in the send queue until it is acknowledged.
bool sent_fin(int state) { return state == kFinWait1 || state == kFinWait2 || state == kLastAck || state == kClosing; }
bool received_fin(int state) { return state == kCloseWait || state == kLastAck || state == kClosing; }

Result<tcp_info> read_tcp_info(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return sys_error("TCP socket", "cannot be described");
  return info;
}

Result<uint64_t> queue_size(int fd, unsigned long request) {
  int size = 0;
  if (::ioctl(fd, request, &size) != 0) return sys_error("TCP connection", "cannot ask for the size of a queue");
  return static_cast<uint64_t>(size);
}

/// A queue is chosen for as long as this lives. While it is that to send, the kernel takes all of it for sent as soon
/// as an acknowledgement comes in: for a moment at a time, then.
class ChosenQueue {
 public:
  static Result<ChosenQueue> choose(int fd, int queue) {
    if (::setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof queue) != 0)
      return sys_error("TCP connection", "cannot choose a queue");
    return ChosenQueue(fd);
  }
  ChosenQueue(ChosenQueue&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ChosenQueue& operator=(ChosenQueue&&) = delete;
  ~ChosenQueue() {
    const int none = TCP_NO_QUEUE;
    if (fd_ >= 0) (void)::setsockopt(fd_, IPPROTO_TCP, TCP_REPAIR_QUEUE, &none, sizeof none);
  }

 private:
  explicit ChosenQueue(int fd) : fd_(fd) {}
  int fd_;
};

Result<uint32_t> queue_sequence(int fd, int queue) {
  CKPT_TRY_ASSIGN(ChosenQueue chosen, ChosenQueue::choose(fd, queue));
  uint32_t sequence = 0;
  socklen_t length = sizeof sequence;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &sequence, &length) != 0)
    return sys_error("TCP connection", "cannot read a sequence number");
  return sequence;
}

/// False: it has less by now.
Result<bool> read_queue(int fd, int queue, uint64_t size, std::vector<std::byte>& bytes) {
  if (size == 0) return true;
  CKPT_TRY_ASSIGN(ChosenQueue chosen, ChosenQueue::choose(fd, queue));
  size_t start = bytes.size();
  bytes.resize(start + size);
  ssize_t got = ::recv(fd, bytes.data() + start, size, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && errno != EAGAIN) return sys_error("TCP connection", "cannot read a queue");
  return got >= 0 && static_cast<uint64_t>(got) == size;
}

/// What moves when a packet arrives.
struct QueueState {
  int state = 0;
  uint64_t received = 0, out = 0, unsent = 0;
  uint32_t receive_sequence = 0, send_sequence = 0;
  bool operator==(const QueueState&) const = default;
};

Result<QueueState> read_queue_state(int fd) {
  QueueState out;
  CKPT_TRY_ASSIGN(const tcp_info info, read_tcp_info(fd));
  out.state = info.tcpi_state;
  CKPT_TRY_ASSIGN(out.received, queue_size(fd, FIONREAD));
  CKPT_TRY_ASSIGN(out.out, queue_size(fd, kOutQueue));
  CKPT_TRY_ASSIGN(out.unsent, queue_size(fd, kOutQueueUnsent));
  CKPT_TRY_ASSIGN(out.receive_sequence, queue_sequence(fd, TCP_RECV_QUEUE));
  CKPT_TRY_ASSIGN(out.send_sequence, queue_sequence(fd, TCP_SEND_QUEUE));
  return out;
}

Result<void> take_repair_state(int fd, TcpConnection& tcp) {
  int value = 0;
  socklen_t size = sizeof value;
  // In repair mode this is what the peer allowed, not the present size of a segment.
  if (::getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, &size) != 0)
    return sys_error("TCP connection", "cannot read its segment size");
  tcp.mss = static_cast<uint32_t>(value);
  size = sizeof value;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_TIMESTAMP, &value, &size) != 0)
    return sys_error("TCP connection", "cannot read its clock");
  tcp.timestamp = static_cast<uint32_t>(value);
  tcp_repair_window window{};
  size = sizeof window;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_REPAIR_WINDOW, &window, &size) != 0) return {};  // before Linux 4.8
  tcp.has_window = true;
  tcp.window_sequence = window.snd_wl1, tcp.send_window = window.snd_wnd, tcp.max_window = window.max_window;
  tcp.receive_window = window.rcv_wnd, tcp.receive_window_update = window.rcv_wup;
  return {};
}

}  // namespace

Result<bool> has_data_in_request(int fd) {
  CKPT_TRY_ASSIGN(const tcp_info info, read_tcp_info(fd));
  return info.tcpi_bytes_sent != 0 || info.tcpi_notsent_bytes != 0;
}

Result<uint32_t> take_tcp_state(int fd, Socket& socket) {
  CKPT_TRY_ASSIGN(const tcp_info info, read_tcp_info(fd));
  if (info.tcpi_state == kListen) {
    // Of a listening socket these two are the bound and the length of its queue.
    socket.state = SocketState::kListening;
    socket.backlog = static_cast<int>(info.tcpi_sacked);
    return info.tcpi_unacked;
  }
  bool ended = (poll_socket(fd) & POLLRDHUP) != 0;
  if (info.tcpi_state == kClose) {
    socket.state = ended ? SocketState::kClosed : SocketState::kUnconnected;
    return 0;
  }
  socket.state = SocketState::kConnected;
  TcpConnection& tcp = socket.tcp;
  tcp.state = info.tcpi_state;
  tcp.timestamps = (info.tcpi_options & TCPI_OPT_TIMESTAMPS) != 0;
  tcp.sack = (info.tcpi_options & TCPI_OPT_SACK) != 0;
  tcp.has_window_scale = (info.tcpi_options & TCPI_OPT_WSCALE) != 0;
  tcp.send_scale = info.tcpi_snd_wscale, tcp.receive_scale = info.tcpi_rcv_wscale;
  if (ended && !received_fin(tcp.state)) socket.shutdown |= 1;
  if (sent_fin(tcp.state)) socket.shutdown |= 2;
  return 0;
}

namespace {

/// False: a packet came in between, and what was taken does not fit together.
Result<bool> try_to_take_queues(int fd, Socket& socket, std::vector<std::byte>& bytes) {
  socket.tcp = TcpConnection();
  CKPT_TRY(take_tcp_state(fd, socket));
  TcpConnection& tcp = socket.tcp;
  CKPT_TRY(take_repair_state(fd, tcp));
  CKPT_TRY_ASSIGN(QueueState before, read_queue_state(fd));
  bool fin_unacked = sent_fin(tcp.state) && tcp.state != kFinWait2 && before.out > 0;
  bool fin_unsent = fin_unacked && before.unsent > 0;
  tcp.receive_size = before.received;
  tcp.receive_memory = socket_memory(fd).received;
  tcp.send_size = before.out - (fin_unacked ? 1 : 0);
  tcp.unsent_size = before.unsent - (fin_unsent ? 1 : 0);
  tcp.receive_sequence = before.receive_sequence - (received_fin(tcp.state) ? 1 : 0);
  tcp.send_sequence = before.send_sequence - (sent_fin(tcp.state) ? 1 : 0);
  CKPT_TRY_ASSIGN(bool received, read_queue(fd, TCP_RECV_QUEUE, tcp.receive_size, bytes));
  CKPT_TRY_ASSIGN(bool sent, read_queue(fd, TCP_SEND_QUEUE, tcp.send_size, bytes));
  CKPT_TRY_ASSIGN(QueueState after, read_queue_state(fd));
  return received && sent && before == after && before.state == tcp.state;
}

}  // namespace

Result<void> take_tcp_queues(OptionGuard& guard, int fd, Socket& socket, std::vector<std::byte>& bytes) {
  constexpr int kAttempts = 1000;  // some 10 us each: as long as packets keep coming, but not for ever
  CKPT_TRY_ASSIGN(const auto no_offset, borrow_no_peek_offset(guard, fd));
  CKPT_TRY_ASSIGN(RepairMode repair, RepairMode::enter(guard, fd));
  const size_t start = bytes.size();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    bytes.resize(start);
    CKPT_TRY_ASSIGN(bool taken, try_to_take_queues(fd, socket, bytes));
    if (taken) return {};
  }
  return Error(Code::kBusy, "TCP connection", "receives without a pause: its state cannot be taken");
}

}  // namespace ckpt::capture
