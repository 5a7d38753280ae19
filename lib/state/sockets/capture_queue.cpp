#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "lib/state/sockets/capture_internal.h"

namespace ckpt::capture {

namespace {

using store::SocketMessage;

constexpr int kAtMark = 0x8905;  // SIOCATMARK of <linux/sockios.h>
constexpr size_t kMaxQueue = size_t{1} << 30;

void set_credentials(const PeekedMessage& from, SocketMessage& to) {
  // Without SO_PASSCRED on either side none were sent along: the kernel then says 0 and the overflow ids.
  if (!from.credentials || from.credentials->pid == 0) return;
  to.has_credentials = true;
  to.sender_pid = from.credentials->pid;
  to.sender_uid = from.credentials->uid, to.sender_gid = from.credentials->gid;
}

bool same_sender(const SocketMessage& a, const SocketMessage& b) {
  return a.has_credentials == b.has_credentials && a.sender_pid == b.sender_pid && a.sender_uid == b.sender_uid &&
         a.sender_gid == b.sender_gid;
}

class StreamPeek {
 public:
  StreamPeek(OptionGuard& guard, int fd) : guard_(guard), fd_(fd) {}

  Result<SocketQueue> run() {
    CKPT_TRY_ASSIGN(auto offset, BorrowedOption::set(guard_, fd_, SOL_SOCKET, SO_PEEK_OFF, 0));
    CKPT_TRY_ASSIGN(auto credentials, BorrowedOption::set(guard_, fd_, SOL_SOCKET, SO_PASSCRED, 1));
    int size = 0, at_mark = 0;
    if (::ioctl(fd_, FIONREAD, &size) != 0) return sys_error("socket", "cannot ask for its fill level");
    char urgent = 0;
    int none = -1;  // an offset would apply to the urgent byte, too
    (void)::setsockopt(fd_, SOL_SOCKET, SO_PEEK_OFF, &none, sizeof none);
    bool has_urgent = ::recv(fd_, &urgent, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT) == 1;
    if (has_urgent && ::ioctl(fd_, kAtMark, &at_mark) != 0)
      return sys_error("socket", "cannot ask for its urgent mark");
    // At the mark the urgent byte is what peeking passes over.
    if (at_mark != 0) add_urgent(urgent);
    size_t left = static_cast<size_t>(size) - (at_mark != 0 ? 1 : 0);
    CKPT_TRY(read_runs(left));
    if (has_urgent && at_mark == 0) find_urgent(urgent);
    return std::move(out_);
  }

 private:
  void add_urgent(char byte) {
    SocketMessage message;
    message.size = 1, message.out_of_band = true;
    out_.messages.push_back(message);
    out_.rights.emplace_back();
    out_.bytes.push_back(static_cast<std::byte>(byte));
  }

  Result<void> read_runs(size_t left) {
    buffer_.resize(std::max<size_t>(left, 1));
    for (size_t offset = 0; offset < left;) {
      CKPT_TRY_ASSIGN(auto run, peek_at(fd_, static_cast<int>(offset), MutableByteSpan(buffer_).first(left - offset)));
      if (!run || run->size == 0) {
        out_.obstacle = "its queue cannot be read to the end";
        return {};
      }
      size_t plain = 0;
      if (!run->rights.empty()) {
        CKPT_TRY_ASSIGN(plain, bytes_before_rights(offset, run->size));
        size_t size = run->size;  // the buffer was used for that
        CKPT_TRY_ASSIGN(run, peek_at(fd_, static_cast<int>(offset), MutableByteSpan(buffer_).first(size)));
        if (!run || run->size != size) return Error(Code::kIo, "socket", "its queue changes while it is read");
      }
      add_run(*run, plain);
      offset += run->size;
    }
    return {};
  }

  /// `plain`: how many of its bytes come before those that carry descriptors.
  void add_run(PeekedMessage& run, size_t plain) {
    if (run.rights.empty()) plain = run.size;
    size_t with_rights = run.size - plain;
    out_.bytes.insert(out_.bytes.end(), buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(run.size));
    for (bool rights : {false, true}) {
      SocketMessage message;
      message.size = rights ? with_rights : plain;
      if (message.size == 0) continue;
      set_credentials(run, message);
      out_.messages.push_back(message);
      out_.rights.emplace_back();
      if (rights) out_.rights.back() = std::move(run.rights);
    }
  }

  /// A run ends with the bytes that carry descriptors; plain ones may stand before them, and the kernel shows the
  /// descriptors with any part of the run. But it copies one sent piece after the other, each whole or not at all: when
  /// the last byte of the run has no place to go, what has been copied is what stands before the last piece.
  Result<size_t> bytes_before_rights(size_t offset, size_t size) {
    void* page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return sys_error("", "cannot map a page");
    Mapping nowhere(page, 4096);
    int start = static_cast<int>(offset);
    if (::setsockopt(fd_, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start) != 0)
      return sys_error("socket", "cannot set its peek offset");
    std::array<iovec, 2> parts{iovec{buffer_.data(), size - 1}, iovec{nowhere.data(), 1}};
    msghdr message{};
    message.msg_iov = parts.data(), message.msg_iovlen = parts.size();
    ssize_t got = ::recvmsg(fd_, &message, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0 && errno != EFAULT) return sys_error("socket", "cannot peek into its queue");
    return static_cast<size_t>(std::max<ssize_t>(got, 0));
  }

  /// A run never goes beyond the urgent byte: it begins one, without any other reason for a border.
  void find_urgent(char urgent) {
    std::vector<size_t> found;
    size_t start = 0;
    for (size_t i = 0; i < out_.messages.size(); ++i) {
      bool reason = i == 0 || !out_.rights[i - 1].empty() || !out_.rights[i].empty() ||
                    !same_sender(out_.messages[i - 1], out_.messages[i]);
      if (!reason && out_.bytes[start] == static_cast<std::byte>(urgent)) found.push_back(i);
      start += out_.messages[i].size;
    }
    if (found.size() != 1) {
      out_.obstacle = "the place of the urgent byte (MSG_OOB) in its queue cannot be told";
      return;
    }
    size_t index = found[0];
    SocketMessage rest = out_.messages[index];
    out_.messages[index].size = 1, out_.messages[index].out_of_band = true;
    if (--rest.size == 0) return;
    out_.messages.insert(out_.messages.begin() + static_cast<ptrdiff_t>(index) + 1, rest);
    out_.rights.emplace(out_.rights.begin() + static_cast<ptrdiff_t>(index) + 1);
  }

  OptionGuard& guard_;
  int fd_;
  SocketQueue out_;
  std::vector<std::byte> buffer_;
};

/// The port that the datagrams of a UDP socket were sent to is its own.
void complete_destination(const std::vector<uint8_t>& name, std::vector<uint8_t>& to) {
  constexpr size_t kPort = offsetof(sockaddr_in, sin_port);
  static_assert(kPort == offsetof(sockaddr_in6, sin6_port));
  if (to.size() >= kPort + 2 && name.size() >= kPort + 2) std::copy_n(name.begin() + kPort, 2, to.begin() + kPort);
}

/// What the kernel has put together for the receiver comes back as it was sent.
void add_parts(const SocketMessage& whole, size_t part_size, SocketQueue& out) {
  uint64_t left = whole.size;
  do {
    SocketMessage& part = out.messages.emplace_back(whole);
    out.rights.emplace_back();
    if (part_size != 0) part.size = std::min<uint64_t>(left, part_size);
    left -= part.size;
  } while (left != 0);
}

Result<std::optional<PeekedMessage>> peek_whole(int fd, size_t offset, std::vector<std::byte>& buffer) {
  for (;;) {
    CKPT_TRY_ASSIGN(auto message, peek_at(fd, static_cast<int>(offset), buffer));
    if (!message || !message->truncated) return message;
    if (buffer.size() >= kMaxQueue) return Error(Code::kNoRoom, "socket", "holds a datagram that is too large");
    buffer.resize(buffer.size() * 2);
  }
}

}  // namespace

Result<SocketQueue> peek_stream(OptionGuard& guard, int fd) { return StreamPeek(guard, fd).run(); }

Result<SocketQueue> peek_datagrams(OptionGuard& guard, int fd, int family, int type, bool pending_error) {
  SocketQueue out;
  int first = 0;
  if (::ioctl(fd, FIONREAD, &first) != 0) return sys_error("socket", "cannot ask for its fill level");
  if (pending_error) {
    if (first > 0) out.obstacle = "it holds datagrams behind an error that has not been reported yet";
    return out;
  }
  bool is_unix = family == AF_UNIX;
  CKPT_TRY_ASSIGN(auto peek_offset, BorrowedOption::set(guard, fd, SOL_SOCKET, SO_PEEK_OFF, 0));
  CKPT_TRY_ASSIGN(auto extra, is_unix             ? BorrowedOption::set(guard, fd, SOL_SOCKET, SO_PASSCRED, 1)
                              : family == AF_INET ? BorrowedOption::set(guard, fd, IPPROTO_IP, IP_PKTINFO, 1)
                                                  : BorrowedOption::set(guard, fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1));
  std::vector<uint8_t> name = is_unix ? std::vector<uint8_t>() : socket_name(fd);
  std::vector<std::byte> buffer(256 * 1024);
  for (size_t offset = 0; offset < kMaxQueue;) {
    CKPT_TRY_ASSIGN(auto message, peek_whole(fd, offset, buffer));
    // The end of a record socket that was shut down looks like an empty record, but for the credentials.
    if (!message || (is_unix && type == SOCK_SEQPACKET && message->size == 0 && !message->credentials)) return out;
    SocketMessage record;
    record.size = message->size, record.from = std::move(message->from), record.to = std::move(message->to);
    if (is_unix)
      set_credentials(*message, record);
    else
      complete_destination(name, record.to);
    add_parts(record, message->part_size, out);
    out.rights.back() = std::move(message->rights);
    out.bytes.insert(out.bytes.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(message->size));
    offset += message->size;
  }
  return Error(Code::kNoRoom, "socket", "holds more than can be copied");
}

}  // namespace ckpt::capture
