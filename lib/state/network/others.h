// What else a network namespace may have, none of which can be made again.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/route_socket.h"

namespace ckpt::state {

/// Queueing disciplines, next-hop objects, entries of bridges, IPsec: in words, into `beyond`.
Result<void> read_others(proc::RouteSocket& socket, std::vector<std::string>& beyond);

}  // namespace ckpt::state
