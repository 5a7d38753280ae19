// What the user says of the links of a new network namespace.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::state {

/// Where the other end of a veth is made: in the network namespace of ckpt's caller.
struct VethEnd {
  std::string name;
  std::string bridge;  ///< that it becomes a port of; empty: of none
};

/// Of a restore that makes a network namespace.
struct NetworkOptions {
  std::map<std::string, VethEnd> ends;  ///< by the name of the end inside
  bool may_match_nothing = false;       ///< as criu has it; else a name that is no such veth is refused
  bool empty = false;                   ///< somebody else will see to links, addresses and all else but loopback
};

/// Each "INSIDE=OUTSIDE[@BRIDGE]", as criu has it. kUsage: something else, or two for one.
Result<std::map<std::string, VethEnd>> parse_veths(const std::vector<std::string>& texts);

}  // namespace ckpt::state
