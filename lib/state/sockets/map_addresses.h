// Addresses of a host that are others at the restore: sockets are bound and connected to the new ones.
#pragma once

#include <netinet/in.h>

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/sockets/record.h"

namespace ckpt::restore {

/// Both of one family. IPv4 as IPv6 writes it (::ffff:a.b.c.d) is IPv4 here.
struct MappedAddress {
  in6_addr from{}, to{};
  std::string text;  ///< as it was given
};
/// "OLD=NEW", each as numbers: kUsage.
Result<MappedAddress> parse_mapped_address(const std::string& text);

/// In the names of sockets and of their peers, and in those of senders of what waits to be read; ports stay. kUsage: a
/// socket is to have an address that this host does not have.
Result<void> map_addresses(const std::vector<MappedAddress>& addresses, std::vector<store::Socket>& sockets);

}  // namespace ckpt::restore
