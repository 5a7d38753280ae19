#include "lib/flash/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/fd_message.h"

namespace ckpt::flash {

namespace {

template <class Head>
std::string pack(Head& head, const std::string& text) {
  head.text_bytes = static_cast<uint32_t>(text.size());
  std::string out(reinterpret_cast<const char*>(&head), sizeof head);
  return out + text;
}

/// A message of at most this many bytes of text, and nothing behind it.
template <class Head>
bool unpack(ByteSpan bytes, size_t most, Head& head, std::string& text) {
  if (bytes.size() < sizeof head) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.magic != kMagic || head.text_bytes > most || bytes.size() != sizeof head + head.text_bytes) return false;
  text = as_text(bytes.subspan(sizeof head));
  return true;
}

}  // namespace

bool is_trusted_peer(int socket, int* pid) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (pid != nullptr) *pid = peer.pid;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

Result<std::optional<Incoming>> receive_request(int socket) {
  std::vector<std::byte> block(sizeof(Request) + kMostText + 1);
  Incoming out;
  const ssize_t got = receive_with_fds(socket, block, out.fds);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<Incoming>();
  if (got <= 0) return fail(Code::kNotFound, "", "the trainer has closed the connection");
  if (!unpack(ByteSpan(block).first(static_cast<size_t>(got)), kMostText, out.request, out.text))
    return fail(Code::kCorrupt, "", "a message that is none of the protocol");
  if (out.request.version != kProtocolVersion)
    return fail(Code::kUnsupported, "", "a message of another version of the protocol");
  return std::optional(std::move(out));
}

bool send_reply(int socket, Reply reply, const std::string& text, int fd) {
  const std::string bytes = pack(reply, text.substr(0, kMostReplyText));
  const int fds[1] = {fd};
  return send_with_fds(socket, as_bytes(bytes), {fds, fd >= 0 ? size_t{1} : size_t{0}}) ==
         static_cast<ssize_t>(bytes.size());
}

Result<Answer> ask(int socket, Request request, const std::string& text, int fd, int timeout_ms) {
  if (text.size() > kMostText) return fail(Code::kUsage, "", "the text is too long for a message");
  const std::string bytes = pack(request, text);
  const int fds[1] = {fd};
  if (send_with_fds(socket, as_bytes(bytes), {fds, fd >= 0 ? size_t{1} : size_t{0}}) < 0)
    return sys_error(EPIPE, "agent", "cannot be reached");
  Stopwatch watch;
  std::vector<std::byte> block(sizeof(Reply) + kMostReplyText + 1);
  for (;;) {
    const auto passed = static_cast<int64_t>(watch.elapsed_us() / 1000);
    pollfd wait{socket, POLLIN, 0};
    const int left = timeout_ms < 0 ? -1 : static_cast<int>(std::max<int64_t>(0, timeout_ms - passed));
    const int ready = ::poll(&wait, 1, left);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return fail(Code::kBusy, "agent", "has not answered in time");
    std::vector<UniqueFd> received;
    const ssize_t got = receive_with_fds(socket, block, received);
    if (got <= 0) return sys_error(EPIPE, "agent", "is gone");
    Answer out;
    if (!unpack(ByteSpan(block).first(static_cast<size_t>(got)), kMostReplyText, out.reply, out.text))
      return fail(Code::kCorrupt, "agent", "answers with a message that is none of the protocol");
    if (out.reply.id != request.id) continue;  // of a question that was given up
    if (!received.empty()) out.fd = std::move(received[0]);
    return out;
  }
}

}  // namespace ckpt::flash
