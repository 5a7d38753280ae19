#include "lib/state/namespaces/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "lib/base/io.h"
#include "lib/base/threads.h"
#include "lib/base/unique_fd.h"

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

Result<Settings> settings_of_new_namespace() {
  Result<Settings> out = fail(Code::kIo, "network namespace", "cannot be made");
  std::thread apart;
  const bool started = start_thread(apart, [&] {
    if (::unshare(CLONE_NEWNET) != 0)
      out = sys_error("network namespace", "cannot be made");
    else
      out = read_settings();
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

/// Whether there is a table of nftables. A kernel without them has none.
bool has_filter_tables() {
  struct {
    nlmsghdr header;
    nfgenmsg message;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
  std::array<char, 8192> answer{};
  if (!fd || ::send(fd.get(), &request, sizeof request, 0) < 0) return false;
  const ssize_t got = ::recv(fd.get(), answer.data(), answer.size(), 0);
  nlmsghdr first{};
  if (got < static_cast<ssize_t>(sizeof first)) return false;
  std::memcpy(&first, answer.data(), sizeof first);
  return first.nlmsg_type != NLMSG_DONE && first.nlmsg_type != NLMSG_ERROR;
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

Result<store::Network> take_network() {
  store::Network out;
  CKPT_TRY(take_interfaces(out));
  if (has_filter_tables()) out.beyond.emplace_back("tables of nftables");
  if (has_old_filters()) out.beyond.emplace_back("rules of iptables");
  const Settings now = read_settings();
  CKPT_TRY_ASSIGN(const Settings fresh, settings_of_new_namespace());
  for (const auto& [path, value] : now) {
    const auto same = fresh.find(path);
    if (same != fresh.end() && same->second != value) out.settings.push_back({path, value});
  }
  return out;
}

}  // namespace ckpt::capture
