// Holds off the packets of TCP connections while no socket answers for them, with nftables (libnftables.so.1, loaded
// when it is needed). Needs CAP_NET_ADMIN and a kernel with nf_tables.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/socket_name.h"

namespace ckpt::proc {

class Nftables;

struct FilteredConnection {
  SocketName local, remote;
};

/// Drops every packet of the connections, both ways, from `create` on. The kernel removes the filter with this object,
/// also when ckpt is killed; `keep` leaves one that stays until `remove_packet_filter`.
class PacketFilter {
 public:
  /// `id`: of the image, letters and digits. The table is called "ckpt-<id>". kUnsupported: no nftables here.
  static Result<PacketFilter> create(const std::string& id, const std::vector<FilteredConnection>& connections);
  PacketFilter(PacketFilter&&) noexcept;
  PacketFilter& operator=(PacketFilter&&) = delete;
  ~PacketFilter();
  Result<void> keep();

 private:
  PacketFilter(std::unique_ptr<Nftables> nftables, std::string id, std::string rules);
  std::unique_ptr<Nftables> nftables_;
  std::string id_, rules_;
};

/// Lets the connections of an image go on. False: there is no such filter (another machine, a reboot).
Result<bool> remove_packet_filter(const std::string& id);

/// Whether a filter could be made here, and if not, why.
Result<void> probe_packet_filter();

}  // namespace ckpt::proc
