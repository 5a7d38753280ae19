// Kinds of links that can be made again, and what of them is kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/proc/route_socket.h"

namespace ckpt::state {

struct LinkKind {
  const char* name;
  std::vector<uint16_t> data;  ///< attributes of IFLA_INFO_DATA that the kernel takes as it tells them
};

/// Null: it cannot be made again.
const LinkKind* find_link_kind(const std::string& name);
/// Of IFLA_INFO_SLAVE_DATA.
const std::vector<uint16_t>& bridge_port_attributes();

/// Flags that a user may change.
extern const uint32_t kLinkFlags;

proc::Octets keep_attributes(ByteSpan told, const std::vector<uint16_t>& kept);
/// Attributes, and of these types.
bool has_only(const proc::Octets& octets, const std::vector<uint16_t>& kept);

}  // namespace ckpt::state
