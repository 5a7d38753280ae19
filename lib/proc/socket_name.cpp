#include "lib/proc/socket_name.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <array>

#include "lib/base/text.h"
#include "lib/base/unique_fd.h"

namespace ckpt::proc {

std::string unix_name(const SocketName& name) {
  constexpr size_t kStart = offsetof(sockaddr_un, sun_path);
  if (name.size() <= kStart) return "";
  std::string out(name.begin() + kStart, name.end());
  return out[0] == 0 ? out : std::string(out.c_str());
}

bool is_abstract(const SocketName& name) {
  std::string text = unix_name(name);
  return !text.empty() && text[0] == 0;
}

std::string name_text(const SocketName& name) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  switch (address_of<sockaddr>(name).sa_family) {
    case AF_UNIX: {
      std::string out = unix_name(name);
      return is_abstract(name) ? "@" + escape_for_terminal(out.substr(1)) : escape_for_terminal(out);
    }
    case AF_INET: {
      auto in = address_of<sockaddr_in>(name);
      return fmt::format("{}:{}", ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size()), ntohs(in.sin_port));
    }
    case AF_INET6: {
      auto in = address_of<sockaddr_in6>(name);
      return fmt::format("[{}]:{}", ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size()),
                         ntohs(in.sin6_port));
    }
    default:
      return "";
  }
}

uint16_t port_of(const SocketName& name) { return address_of<sockaddr_in>(name).sin_port; }

SocketName plain_name(const SocketName& name) {
  if (address_of<sockaddr>(name).sa_family != AF_INET6) return name;
  auto six = address_of<sockaddr_in6>(name);
  if (!IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return name;
  sockaddr_in four{};
  four.sin_family = AF_INET, four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, 4);
  return name_of(four);
}

bool has_address(const SocketName& name) {
  const auto four = address_of<sockaddr_in>(name);
  const auto six = address_of<sockaddr_in6>(name);
  if (four.sin_family == AF_INET) return four.sin_addr.s_addr != INADDR_ANY;
  return four.sin_family == AF_INET6 && !IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr);
}

bool is_local_address(const SocketName& name) {
  SocketName any_port = name;
  if (any_port.size() < sizeof(sockaddr_in)) return false;
  std::memset(any_port.data() + offsetof(sockaddr_in, sin_port), 0, sizeof(sockaddr_in::sin_port));
  UniqueFd probe(::socket(address_of<sockaddr>(name).sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return probe && ::bind(probe.get(), reinterpret_cast<sockaddr*>(any_port.data()),
                         static_cast<socklen_t>(any_port.size())) == 0;
}

}  // namespace ckpt::proc
