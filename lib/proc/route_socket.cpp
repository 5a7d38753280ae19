#include "lib/proc/route_socket.h"

#include <linux/netlink.h>
#include <sys/socket.h>

#include <cerrno>

namespace ckpt::proc {

namespace {

constexpr size_t kRouteBuffer = 1 << 16;

template <class T>
T head_of(ByteSpan bytes) {
  T out{};
  if (bytes.size() >= sizeof out) std::memcpy(&out, bytes.data(), sizeof out);
  return out;
}

/// What the kernel adds to an error, behind the request that it repeats or the head of it.
std::string words_of(const nlmsghdr& head, ByteSpan body) {
  const auto error = head_of<nlmsgerr>(body);
  size_t at = sizeof error;
  if ((head.nlmsg_flags & NLM_F_CAPPED) == 0 && error.msg.nlmsg_len > sizeof error.msg)
    at += NLMSG_ALIGN(error.msg.nlmsg_len - sizeof error.msg);
  if ((head.nlmsg_flags & NLM_F_ACK_TLVS) == 0 || at > body.size()) return "";
  const ByteSpan text = find_attribute(body.subspan(at), NLMSGERR_ATTR_MSG);
  return std::string(as_text(text).substr(0, as_text(text).find('\0')));
}

Error refusal(const nlmsghdr& head, ByteSpan body) {
  const int error = -head_of<nlmsgerr>(body).error;
  Error out = sys_error(error, "", "the kernel refuses");
  if (const std::string words = words_of(head, body); !words.empty()) out.message += " (" + words + ")";
  if (error == EINVAL || error == EPROTONOSUPPORT) out.code = Code::kUnsupported;
  return out;
}

}  // namespace

RouteMessage::RouteMessage(const void* head, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(head);
  octets_.assign(bytes, bytes + size);
  octets_.resize(NLMSG_ALIGN(size));
}

void RouteMessage::add(uint16_t type, ByteSpan data) {
  const size_t begin = open(type);
  const auto* bytes = reinterpret_cast<const uint8_t*>(data.data());
  octets_.insert(octets_.end(), bytes, bytes + data.size());
  close(begin);
}

void RouteMessage::add_text(uint16_t type, const std::string& text) {
  add(type, {reinterpret_cast<const std::byte*>(text.c_str()), text.size() + 1});
}

size_t RouteMessage::open(uint16_t type, const void* head, size_t size) {
  const size_t begin = octets_.size();
  const nlattr attribute{0, type};
  const auto* bytes = reinterpret_cast<const uint8_t*>(&attribute);
  octets_.insert(octets_.end(), bytes, bytes + sizeof attribute);
  const auto* first = static_cast<const uint8_t*>(head);
  if (size != 0) octets_.insert(octets_.end(), first, first + size);
  octets_.resize(NLA_ALIGN(octets_.size()));
  return begin;
}

void RouteMessage::close(size_t begin) {
  const auto length = static_cast<uint16_t>(octets_.size() - begin);
  std::memcpy(octets_.data() + begin, &length, sizeof length);
  octets_.resize(NLA_ALIGN(octets_.size()));
}

std::optional<std::vector<RouteAttribute>> parse_attributes(ByteSpan bytes) {
  std::vector<RouteAttribute> out;
  for (size_t at = 0; at < bytes.size();) {
    const auto head = head_of<nlattr>(bytes.subspan(at));
    if (head.nla_len < sizeof head || head.nla_len > bytes.size() - at) return std::nullopt;
    out.push_back({static_cast<uint16_t>(head.nla_type & NLA_TYPE_MASK),
                   bytes.subspan(at + sizeof head, head.nla_len - sizeof head)});
    at += NLA_ALIGN(head.nla_len);
  }
  return out;
}

ByteSpan find_attribute(ByteSpan bytes, uint16_t type) {
  const auto attributes = parse_attributes(bytes);
  if (!attributes) return {};
  for (const RouteAttribute& attribute : *attributes) {
    if (attribute.type == type) return attribute.data;
  }
  return {};
}

Result<RouteSocket> RouteSocket::open(int protocol) {
  RouteSocket out(UniqueFd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol)));
  if (!out.fd_) return sys_error("netlink", "no socket can be made");
  const int on = 1;  // without them there are fewer words
  (void)::setsockopt(out.fd_.get(), SOL_NETLINK, NETLINK_EXT_ACK, &on, sizeof on);
  (void)::setsockopt(out.fd_.get(), SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on);
  out.buffer_.resize(kRouteBuffer);
  return out;
}

Result<void> RouteSocket::send(uint16_t type, uint16_t flags, const Octets& request) {
  nlmsghdr head{};
  head.nlmsg_len = static_cast<uint32_t>(sizeof head + request.size());
  head.nlmsg_type = type, head.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags), head.nlmsg_seq = ++sequence_;
  Octets message(sizeof head);
  std::memcpy(message.data(), &head, sizeof head);
  message.insert(message.end(), request.begin(), request.end());
  if (::send(fd_.get(), message.data(), message.size(), 0) != static_cast<ssize_t>(message.size()))
    return sys_error("netlink", "cannot ask the kernel");
  return {};
}

Result<size_t> RouteSocket::receive() {
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), buffer_.data(), buffer_.size(), MSG_TRUNC);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return sys_error("netlink", "the kernel does not answer");
    if (static_cast<size_t>(got) > buffer_.size()) return fail(Code::kIo, "netlink", "the kernel's answer is too long");
    return static_cast<size_t>(got);
  }
}

/// One buffer of an answer. True: it was the last.
Result<bool> RouteSocket::take(size_t size, std::vector<Octets>& out, bool& interrupted) {
  const ByteSpan all = as_bytes(buffer_).first(size);
  for (size_t at = 0; at + sizeof(nlmsghdr) <= all.size();) {
    const auto head = head_of<nlmsghdr>(all.subspan(at));
    if (head.nlmsg_len < sizeof head || head.nlmsg_len > all.size() - at) break;
    const ByteSpan body = all.subspan(at + sizeof head, head.nlmsg_len - sizeof head);
    at += NLMSG_ALIGN(head.nlmsg_len);
    if (head.nlmsg_seq != sequence_) continue;  // of a dump that was given up
    interrupted = interrupted || (head.nlmsg_flags & NLM_F_DUMP_INTR) != 0;
    if (head.nlmsg_type == NLMSG_DONE) {
      const int error = -head_of<int>(body);  // a dump that failed on its way
      if (error > 0) return sys_error(error, "netlink", "the kernel cannot tell all");
      return true;
    }
    if (head.nlmsg_type == NLMSG_ERROR && head_of<nlmsgerr>(body).error == 0) return true;
    if (head.nlmsg_type == NLMSG_ERROR) return refusal(head, body);
    const auto* bytes = reinterpret_cast<const uint8_t*>(body.data());
    out.emplace_back(bytes, bytes + body.size());
    if (at > all.size()) break;
  }
  return false;
}

Result<std::vector<Octets>> RouteSocket::dump(uint16_t type, const Octets& request) {
  constexpr int kAttempts = 20;
  for (int attempt = 1;; ++attempt) {
    CKPT_TRY(send(type, NLM_F_DUMP, request));
    std::vector<Octets> out;
    bool interrupted = false;
    for (bool last = false; !last;) {
      CKPT_TRY_ASSIGN(const size_t size, receive());
      CKPT_TRY_ASSIGN(last, take(size, out, interrupted));
    }
    if (!interrupted) return out;
    if (attempt == kAttempts) return fail(Code::kBusy, "netlink", "what is there changes while it is looked at");
  }
}

Result<void> RouteSocket::ask(uint16_t type, uint16_t flags, const Octets& request) {
  CKPT_TRY(send(type, static_cast<uint16_t>(NLM_F_ACK | flags), request));
  std::vector<Octets> ignored;
  bool interrupted = false;
  for (bool last = false; !last;) {
    CKPT_TRY_ASSIGN(const size_t size, receive());
    CKPT_TRY_ASSIGN(last, take(size, ignored, interrupted));
  }
  return {};
}

}  // namespace ckpt::proc
