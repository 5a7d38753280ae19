// rtnetlink: links, addresses and routes of a network namespace, in the kernel's own messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::proc {

using Octets = std::vector<uint8_t>;

inline ByteSpan as_bytes(const Octets& octets) {
  return {reinterpret_cast<const std::byte*>(octets.data()), octets.size()};
}

/// What is in a message behind its nlmsghdr: a fixed head (struct ifinfomsg, rtmsg, ...), and attributes.
class RouteMessage {
 public:
  template <class Head>
  explicit RouteMessage(const Head& head) : RouteMessage(&head, sizeof head) {}
  RouteMessage(const void* head, size_t size);
  void add(uint16_t type, ByteSpan data);
  /// With the zero byte that the kernel wants behind it.
  void add_text(uint16_t type, const std::string& text);
  template <class T>
    requires std::is_arithmetic_v<T>
  void add_value(uint16_t type, T value) {
    add(type, {reinterpret_cast<const std::byte*>(&value), sizeof value});
  }
  /// An attribute of attributes: begins it, `size` bytes of `head` first; what it returns ends it.
  size_t open(uint16_t type, const void* head = nullptr, size_t size = 0);
  void close(size_t begin);
  const Octets& octets() const { return octets_; }
  Octets& octets() { return octets_; }

 private:
  Octets octets_;
};

struct RouteAttribute {
  uint16_t type = 0;  ///< without the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER
  ByteSpan data;
};
/// Nothing: `bytes` are not attributes, one after the other, and nothing else.
std::optional<std::vector<RouteAttribute>> parse_attributes(ByteSpan bytes);
/// The first of this type; empty: there is none, or there are no attributes.
ByteSpan find_attribute(ByteSpan bytes, uint16_t type);

/// A value of the wrong length is 0.
template <class T>
T value_of_attribute(ByteSpan data) {
  T out{};
  if (data.size() == sizeof out) std::memcpy(&out, data.data(), sizeof out);
  return out;
}

/// Stays in the network namespace in which it was opened.
class RouteSocket {
 public:
  /// `protocol`: NETLINK_ROUTE, or another one that has dumps (NETLINK_XFRM).
  static Result<RouteSocket> open(int protocol);
  /// All objects that the request (with NLM_F_DUMP) is about, each without its nlmsghdr. kUnsupported: the kernel knows
  /// no such request.
  Result<std::vector<Octets>> dump(uint16_t type, const Octets& request);
  /// Has something made, changed or removed; `flags`: NLM_F_CREATE and the like. What fails is told in the kernel's
  /// words where it has some.
  Result<void> ask(uint16_t type, uint16_t flags, const Octets& request);

 private:
  explicit RouteSocket(UniqueFd fd) : fd_(std::move(fd)) {}
  Result<void> send(uint16_t type, uint16_t flags, const Octets& request);
  Result<bool> take(size_t size, std::vector<Octets>& out, bool& interrupted);
  Result<size_t> receive();

  UniqueFd fd_;
  uint32_t sequence_ = 0;
  Octets buffer_;
};

}  // namespace ckpt::proc
