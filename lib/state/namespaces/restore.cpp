#include "lib/state/namespaces/restore.h"

#include <fmt/format.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>

#include "lib/proc/packet_filter.h"
#include "lib/state/namespaces/ipc_limits.h"
#include "lib/state/network/content.h"

namespace ckpt::restore {

Result<void> set_host_names(const std::string& host, const std::string& domain) {
  if (::sethostname(host.data(), host.size()) != 0) return sys_error(host, "cannot be made the hostname");
  if (::setdomainname(domain.data(), domain.size()) != 0) return sys_error(domain, "cannot be made the domain name");
  return {};
}

namespace {

/// What arrives before the sockets are there would be answered with a reset. The restore removes the filter that the
/// dump had made, which this one stands for.
Result<void> hold_connections(const store::TreeImage& tree) {
  std::vector<proc::FilteredConnection> connections;
  for (const store::Socket& socket : tree.sockets) {
    if (socket.tcp.state != 0 && socket.state == store::SocketState::kConnected)
      connections.push_back({socket.name, socket.peer_name});
  }
  if (tree.packet_filter.empty() || connections.empty()) return {};
  CKPT_TRY_ASSIGN(proc::PacketFilter filter, proc::PacketFilter::create(tree.packet_filter, connections));
  return filter.keep();
}

/// An outer end that the user named, and that is nobody's, or has a name that is taken.
Result<void> check_veths(const store::Network& network, const state::NetworkOptions& veths) {
  for (const auto& [name, end] : veths.ends) {
    const auto is_it = [&inside = name](const auto& link) { return link.name == inside && state::leads_outside(link); };
    const bool is_known = std::any_of(network.links.begin(), network.links.end(), is_it);
    if (!is_known && veths.may_match_nothing) continue;
    if (!is_known) return fail(Code::kUsage, "--veth " + name, "is no veth with its other end outside");
    if (::if_nametoindex(end.name.c_str()) != 0) return fail(Code::kBusy, end.name, "is an interface that is there");
    if (!end.bridge.empty() && ::if_nametoindex(end.bridge.c_str()) == 0)
      return fail(Code::kNotFound, end.bridge, "no such interface");
  }
  return {};
}

}  // namespace

Result<void> check_namespaces(const store::Namespaces& namespaces, bool network,
                              const state::NetworkOptions& options) {
  CKPT_TRY(state::validate_network(namespaces.network));
  CKPT_TRY(state::validate_ipc_limits(namespaces.ipc_limits));
  if (!network) {
    const bool is_for_nothing = !options.ends.empty() && !options.may_match_nothing;
    return is_for_nothing ? fail(Code::kUsage, "--veth", "is of a network namespace that is made, and none is")
                          : Result<void>();
  }
  if (options.empty) return {};
  Error error(Code::kUnsupported, "the image", "is of processes in namespaces that cannot be made again yet");
  for (const std::string& thing : namespaces.network.beyond)
    error.causes.push_back("a network namespace with " + thing);
  for (const store::NetworkLink& link : namespaces.network.links) {
    if (!state::leads_outside(link) || options.ends.count(link.name) != 0) continue;
    error.causes.push_back(fmt::format("interface {}, a veth with its other end outside: --veth {}=NAME[@BRIDGE] says "
                                       "what that is to be",
                                       link.name, link.name));
  }
  if (error.causes.empty()) return check_veths(namespaces.network, options);
  return std::move(error).with_hint(
      "--into PID restores it into those of a running process, --join-ns net:PATH into this network namespace");
}

Result<void> fill_namespaces(const store::TreeImage& tree, const std::map<std::string, bool>& make,
                             const state::NetworkOptions& options, state::Outside* outside) {
  if (make.count("uts") != 0) CKPT_TRY(set_host_names(tree.namespaces.hostname, tree.namespaces.domainname));
  if (make.count("ipc") != 0) CKPT_TRY(state::write_ipc_limits(tree.namespaces.ipc_limits));
  if (make.count("net") == 0) return {};
  const store::Network& all = tree.namespaces.network;
  const store::Network network = options.empty ? state::without_links(all) : all;
  return state::make_network(network, options.ends, outside, [&] { return hold_connections(tree); });
}

}  // namespace ckpt::restore
