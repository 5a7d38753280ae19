// The links of a network namespace (rtnetlink's word for interfaces).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/route_socket.h"
#include "lib/state/network/options.h"
#include "lib/state/network/record.h"

namespace ckpt::state {

/// What cannot be made again is told in `beyond`, and left out.
Result<std::vector<store::NetworkLink>> read_links(proc::RouteSocket& socket, std::vector<std::string>& beyond);

/// A veth with one end here alone.
bool leads_outside(const store::NetworkLink& link);

/// A name that the kernel takes for a link, and that is no path.
bool is_link_name(const std::string& name);
/// kCorrupt: a description that makes no sense in itself.
Result<void> validate_links(const std::vector<store::NetworkLink>& links);

/// The network namespace in which the other ends of veths are.
class Outside {
 public:
  /// That of this thread.
  static Result<Outside> here();
  int handle() const { return handle_.get(); }
  /// Brings a link there up, as a port of `bridge` where that is not empty. kNotFound.
  Result<void> connect(const VethEnd& end);

 private:
  Outside(UniqueFd handle, proc::RouteSocket socket) : handle_(std::move(handle)), socket_(std::move(socket)) {}
  UniqueFd handle_;
  proc::RouteSocket socket_;
};

/// In a new network namespace, of links that are valid. Each end of a veth that leads outside has an entry in `ends`.
/// The links are not up.
Result<void> make_links(proc::RouteSocket& socket, const std::vector<store::NetworkLink>& links,
                        const std::map<std::string, VethEnd>& ends, Outside* outside);
/// Puts ports into their bridges, and what was up is up.
Result<void> raise_links(proc::RouteSocket& socket, const std::vector<store::NetworkLink>& links,
                         const std::map<std::string, VethEnd>& ends, Outside* outside);

}  // namespace ckpt::state
