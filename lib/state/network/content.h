// All of a network namespace at once.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "lib/base/result.h"
#include "lib/state/network/links.h"
#include "lib/state/network/record.h"

namespace ckpt::state {

/// Links, addresses, routes, rules and neighbours of the namespace of this thread, and in `beyond` what of them, and
/// what else, cannot be made again. Not settings and filters.
Result<store::Network> read_content();

/// kCorrupt: a description that makes no sense in itself.
Result<void> validate_network(const store::Network& network);

/// Loopback and the settings that are of no other link alone.
store::Network without_links(const store::Network& network);

/// Gives a new namespace, which this thread is in, all that the image says. `ends`: of each veth that leads outside.
/// `before_up` runs when everything but the addresses is there, and no link is up.
Result<void> make_network(const store::Network& network, const std::map<std::string, VethEnd>& ends, Outside* outside,
                          const std::function<Result<void>()>& before_up);

}  // namespace ckpt::state
