// Multicast groups: no call lists those of a socket, but it can be asked about each group that the machine has joined.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <sstream>

#include "lib/base/io.h"
#include "lib/state/sockets/capture_internal.h"

namespace ckpt::capture {

namespace {

using store::SocketMembership;

bool bytes_of_hex(const std::string& text, uint8_t* out, size_t size) {
  if (text.size() != 2 * size) return false;
  for (size_t i = 0; i < size; ++i) {
    const char* at = text.data() + 2 * i;
    if (std::from_chars(at, at + 2, out[i], 16).ptr != at + 2) return false;
  }
  return true;
}

}  // namespace

std::vector<SocketMembership> parse_igmp(const std::string& text) {
  std::vector<SocketMembership> out;
  std::istringstream lines(text);
  uint32_t interface = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (line.empty() || line[0] == 'I') continue;  // the heading
    if (line[0] != '\t') {
      std::from_chars(first.data(), first.data() + first.size(), interface);
      continue;
    }
    // The address as a number of this machine's byte order.
    uint8_t address[4];
    if (!bytes_of_hex(first, address, sizeof address)) continue;
    std::reverse(address, address + sizeof address);
    sockaddr_in group{};
    group.sin_family = AF_INET;
    std::memcpy(&group.sin_addr, address, sizeof address);
    out.push_back({interface, proc::name_of(group)});
  }
  return out;
}

std::vector<SocketMembership> parse_igmp6(const std::string& text) {
  std::vector<SocketMembership> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    uint32_t interface = 0;
    std::string device, address;
    sockaddr_in6 group{};
    group.sin6_family = AF_INET6;
    if (words >> interface >> device >> address && bytes_of_hex(address, group.sin6_addr.s6_addr, 16))
      out.push_back({interface, proc::name_of(group)});
  }
  return out;
}

std::vector<uint8_t> portless_peer(const std::string& list, int family, uint64_t inode) {
  constexpr size_t kWords = 10, kRemote = 2, kInode = 9;
  const size_t size = family == AF_INET ? 4 : 16;
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream text(line);
    std::vector<std::string> words(kWords);
    for (std::string& word : words) text >> word;
    if (words[kInode] != std::to_string(inode)) continue;
    // Numbers of this machine's byte order, four bytes each.
    uint8_t address[16] = {};
    if (!bytes_of_hex(words[kRemote].substr(0, words[kRemote].find(':')), address, size)) return {};
    for (size_t at = 0; at < size; at += 4) std::reverse(address + at, address + at + 4);
    if (std::all_of(address, address + size, [](uint8_t b) { return b == 0; })) return {};
    sockaddr_in four{};
    sockaddr_in6 six{};
    four.sin_family = AF_INET, six.sin6_family = AF_INET6;
    std::memcpy(&four.sin_addr, address, sizeof four.sin_addr);
    std::memcpy(&six.sin6_addr, address, sizeof six.sin6_addr);
    return family == AF_INET ? proc::name_of(four) : proc::name_of(six);
  }
  return {};
}

namespace {

/// Those among the groups of this machine that the socket has joined; false: one of them with a choice of sources.
bool take_joined(int fd, int level, std::vector<SocketMembership> candidates, store::Socket& socket) {
  bool plain = true;
  for (SocketMembership& candidate : candidates) {
    group_filter filter{};
    filter.gf_interface = candidate.interface;
    std::memcpy(&filter.gf_group, candidate.group.data(), candidate.group.size());
    socklen_t size = GROUP_FILTER_SIZE(0);
    if (::getsockopt(fd, level, MCAST_MSFILTER, &filter, &size) != 0) continue;
    plain &= filter.gf_fmode == MCAST_EXCLUDE && filter.gf_numsrc == 0;
    socket.memberships.push_back(std::move(candidate));
  }
  return plain;
}

}  // namespace

Result<bool> take_memberships(int fd, store::Socket& socket) {
  struct List {
    const char* path;
    int level;
    std::vector<SocketMembership> (*parse)(const std::string&);
  };
  // A socket of IPv6 may have joined groups of IPv4, too.
  constexpr List kLists[] = {{"/proc/thread-self/net/igmp", IPPROTO_IP, parse_igmp},
                             {"/proc/thread-self/net/igmp6", IPPROTO_IPV6, parse_igmp6}};
  bool plain = true;
  for (const List& list : kLists) {
    if (list.level == IPPROTO_IPV6 && socket.family == AF_INET) continue;
    auto text = io::read_file(list.path, kMaxList);
    if (!text && text.error().code == Code::kNotFound) continue;
    if (!text) return std::move(text).error();
    plain &= take_joined(fd, list.level, list.parse(*text), socket);
  }
  return plain;
}

}  // namespace ckpt::capture
