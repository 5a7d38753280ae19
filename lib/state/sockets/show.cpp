#include "lib/state/sockets/show.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>

#include "lib/base/text.h"

namespace ckpt::state {

std::string show(const store::Socket& socket) {
  static constexpr std::array<const char*, 8> kStates = {"unconnected", "listening", "connected", "pending",
                                                         "peer gone",   "external",  "closed",    "connecting"};
  std::string family = socket.family == AF_UNIX    ? "unix"
                       : socket.family == AF_INET  ? "ipv4"
                       : socket.family == AF_INET6 ? "ipv6"
                                                   : fmt::format("family {}", socket.family);
  std::string type = socket.type == SOCK_STREAM      ? "stream"
                     : socket.type == SOCK_DGRAM     ? "dgram"
                     : socket.type == SOCK_SEQPACKET ? "seqpacket"
                                                     : "raw";
  std::string waiting = socket.content_size == 0 ? "" : ", " + human_bytes(socket.content_size) + " in its queues";
  return fmt::format("{} {}, {}{}", family, type, kStates[static_cast<size_t>(socket.state)], waiting);
}

}  // namespace ckpt::state
