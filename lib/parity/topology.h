// Which ranks fail together, and so which may protect one another.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/topology.h"
#include "lib/parity/code.h"

namespace ckpt::parity {

enum class FailureGroup { kNode, kRack };

struct SetRules {
  Scheme scheme = Scheme::kXor;
  uint32_t parity = 1;  ///< so many lost members are survived
  FailureGroup group = FailureGroup::kNode;
  uint32_t set_size = 16;  ///< members at most, where a set has one rank of a group
};

/// The ranks of each set, by member. No set has two ranks of one failure group: with as many local ranks on each of the
/// nodes, set l is local rank l of all of them. Only rs with as much parity as a group has ranks takes all ranks of its
/// groups into one set. kUsage: too few groups.
Result<std::vector<std::vector<uint32_t>>> make_sets(const std::vector<Place>& places, const SetRules& rules);

}  // namespace ckpt::parity
