// Addresses, routes, policy rules and neighbours of a network namespace: rtnetlink's own messages, of which only what
// can be given back is kept, in the same form wherever it was read.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/route_socket.h"
#include "lib/state/network/record.h"

namespace ckpt::state {

enum class MessageKind { kAddress, kRoute, kRule, kNeighbour };

using Messages = std::vector<store::NetworkMessage>;

/// In the order of the kernel. Left out is what comes back by itself, or is heard again: what was learned, cached, and
/// of IPv6 all routes that the kernel makes for addresses. What is there and cannot be made again is told in `beyond`.
Result<Messages> read_messages(proc::RouteSocket& socket, MessageKind kind, std::vector<std::string>& beyond);

/// kCorrupt: no message of this kind, or one with more in it than ckpt writes.
Result<void> validate_messages(const Messages& messages, MessageKind kind);

/// Makes what is missing, then removes what should not be there. They must be valid.
Result<void> make_messages(proc::RouteSocket& socket, MessageKind kind, const Messages& wanted);
Result<void> remove_others(proc::RouteSocket& socket, MessageKind kind, const Messages& wanted);

}  // namespace ckpt::state
