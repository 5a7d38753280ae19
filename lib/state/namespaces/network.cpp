#include "lib/state/namespaces/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"
#include "lib/state/namespaces/loopback.h"

namespace ckpt::capture {

namespace {

using Settings = std::map<std::string, std::string>;

/// Of the namespace of this thread, by their paths below /proc/sys.
Settings read_settings() {
  namespace fs = std::filesystem;
  constexpr uint64_t kLimit = 1 << 16;
  Settings out;
  std::error_code ec;
  const fs::path top = "/proc/sys";
  for (fs::recursive_directory_iterator at(top / "net", ec), end; !ec && at != end; at.increment(ec)) {
    std::error_code ignored;
    const fs::perms mode = at->status(ignored).permissions();
    if (at->is_directory(ignored) || (mode & fs::perms::owner_write) == fs::perms::none) continue;
    auto text = io::read_file(at->path(), kLimit);  // some may only be written
    if (text) out[at->path().lexically_relative(top).string()] = std::move(*text);
  }
  return out;
}

struct Routing {
  size_t routes = 0, rules = 0;
};
Result<Routing> count_routing();

struct NewNamespace {
  Settings settings;
  Routing routing;
};
/// What a new one has, with loopback up where `loopback_up`.
Result<NewNamespace> look_at_new_namespace(bool loopback_up) {
  Result<NewNamespace> out = fail(Code::kIo, "network namespace", "cannot be made");
  std::thread apart;
  const bool started = start_thread(apart, [&] {
    auto look = [&]() -> Result<NewNamespace> {
      if (::unshare(CLONE_NEWNET) != 0) return sys_error("network namespace", "cannot be made");
      NewNamespace seen{read_settings(), {}};
      if (loopback_up) CKPT_TRY(state::raise_loopback());
      CKPT_TRY_ASSIGN(seen.routing, count_routing());
      return seen;
    };
    out = look();
  });
  if (!started) return no_thread("");
  apart.join();
  return out;
}

bool is_own_of_loopback(const sockaddr* address) {
  if (address == nullptr) return true;
  if (address->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof in);
    return in.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
  }
  if (address->sa_family != AF_INET6) return true;
  sockaddr_in6 in{};
  std::memcpy(&in, address, sizeof in);
  return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr) != 0;
}

Result<void> take_interfaces(store::Network& out) {
  std::unique_ptr<struct if_nameindex, void (*)(struct if_nameindex*)> all(::if_nameindex(), ::if_freenameindex);
  if (!all) return sys_error("network namespace", "cannot be asked for its interfaces");
  for (const struct if_nameindex* one = all.get(); one->if_index != 0; ++one) {
    if (std::string(one->if_name) != "lo") out.beyond.push_back(std::string("interface ") + one->if_name);
  }
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return sys_error("network namespace", "cannot be asked for its addresses");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> addresses(list, ::freeifaddrs);
  for (const ifaddrs* one = addresses.get(); one != nullptr; one = one->ifa_next) {
    if (std::string(one->ifa_name) == "lo" && !is_own_of_loopback(one->ifa_addr))
      out.beyond.push_back("an address of interface lo beside its own");
  }
  const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  if (!fd || ::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return sys_error("lo", "cannot be looked at");
  out.loopback_up = (request.ifr_flags & IFF_UP) != 0;
  return {};
}

/// How many objects a dump of routing netlink has (RTM_GETROUTE, RTM_GETRULE), in the namespace of this thread. A
/// family that the kernel lacks has none.
Result<size_t> count_routing(uint16_t type, unsigned char family) {
  struct {
    nlmsghdr header;
    rtmsg message;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.message.rtm_family = family;
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd || ::send(fd.get(), &request, sizeof request, 0) < 0)
    return sys_error("network namespace", "cannot be asked for its routes");
  std::vector<char> answer(1 << 16);
  for (size_t count = 0;;) {
    const ssize_t got = ::recv(fd.get(), answer.data(), answer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return sys_error("network namespace", "does not tell its routes");
    auto left = static_cast<size_t>(got);
    for (size_t at = 0; left - at >= sizeof(nlmsghdr);) {
      nlmsghdr header{};
      std::memcpy(&header, answer.data() + at, sizeof header);
      if (header.nlmsg_type == NLMSG_DONE || header.nlmsg_type == NLMSG_ERROR) return count;
      if (header.nlmsg_len < sizeof header || header.nlmsg_len > left - at) break;
      ++count;
      at += NLMSG_ALIGN(header.nlmsg_len);
      if (at > left) break;
    }
  }
}

Result<Routing> count_routing() {
  Routing out;
  for (const unsigned char family : {AF_INET, AF_INET6}) {
    CKPT_TRY_ASSIGN(const size_t routes, count_routing(RTM_GETROUTE, family));
    CKPT_TRY_ASSIGN(const size_t rules, count_routing(RTM_GETRULE, family));
    out.routes += routes, out.rules += rules;
  }
  return out;
}

/// Whether there is a table of nftables; nothing: the kernel does not say. One without them has none.
std::optional<bool> has_filter_tables() {
  struct {
    nlmsghdr header;
    nfgenmsg message;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
  std::array<char, 8192> answer{};
  if (!fd) return errno == EPROTONOSUPPORT ? std::optional(false) : std::nullopt;
  if (::send(fd.get(), &request, sizeof request, 0) < 0) return std::nullopt;
  const ssize_t got = ::recv(fd.get(), answer.data(), answer.size(), 0);
  struct {
    nlmsghdr header;
    nlmsgerr error;
  } first{};
  if (got < static_cast<ssize_t>(sizeof first.header)) return std::nullopt;
  std::memcpy(&first, answer.data(), std::min(sizeof first, static_cast<size_t>(got)));
  if (first.header.nlmsg_type != NLMSG_ERROR) return first.header.nlmsg_type != NLMSG_DONE;
  for (const int lacking : {EOPNOTSUPP, EINVAL, ENOENT, EPROTONOSUPPORT}) {
    if (first.error.error == -lacking) return false;
  }
  return std::nullopt;
}

bool has_old_filters() {
  constexpr uint64_t kLimit = 4096;
  for (const char* file : {"/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"}) {
    auto names = io::read_file(file, kLimit);
    if (names && !names->empty()) return true;
  }
  return false;
}

}  // namespace

namespace {

/// Writing one of these changes others, below net/ipv4/conf and net/ipv6/conf.
bool changes_others(const std::string& path) {
  return path.ends_with("/forwarding") || path.ends_with("/ip_forward") || path.find("/conf/all/") != std::string::npos;
}

bool is_of_interfaces(const std::string& path) { return path.find("/conf/") != std::string::npos; }

/// Those that are not as in a new namespace, in the order to write them: what changes others first, and all that it may
/// have changed after it.
std::vector<store::NetworkSetting> settings_to_make(const Settings& now, const Settings& fresh) {
  std::vector<store::NetworkSetting> out;
  bool cascades = false;
  auto is_other = [&](const std::string& path, const std::string& value) {
    const auto same = fresh.find(path);
    return same != fresh.end() && same->second != value;
  };
  for (const auto& [path, value] : now) {
    if (!changes_others(path) || !is_other(path, value)) continue;
    out.push_back({path, value});
    cascades = true;
  }
  for (const auto& [path, value] : now) {
    if (changes_others(path) || fresh.count(path) == 0) continue;
    if (is_other(path, value) || (cascades && is_of_interfaces(path))) out.push_back({path, value});
  }
  return out;
}

}  // namespace

Result<store::Network> take_network() {
  store::Network out;
  CKPT_TRY(take_interfaces(out));
  const std::optional<bool> tables = has_filter_tables();
  if (!tables) out.beyond.emplace_back("tables of nftables, perhaps: the kernel does not say");
  if (tables == true) out.beyond.emplace_back("tables of nftables");
  if (has_old_filters()) out.beyond.emplace_back("rules of iptables");
  CKPT_TRY_ASSIGN(const NewNamespace fresh, look_at_new_namespace(out.loopback_up));
  CKPT_TRY_ASSIGN(const Routing routing, count_routing());
  if (out.beyond.empty() && routing.routes != fresh.routing.routes) out.beyond.emplace_back("routes of its own");
  if (routing.rules != fresh.routing.rules) out.beyond.emplace_back("routing rules of its own");
  out.settings = settings_to_make(read_settings(), fresh.settings);
  return out;
}

}  // namespace ckpt::capture
