// The rules of nftables in the network namespace of this thread, those of iptables-nft among them.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::state {

/// As nftables lists them, without tables of ckpt's own. What cannot be given back is told in `beyond`.
Result<std::string> read_filters(std::vector<std::string>& beyond);

/// kCorrupt: more than a list of tables.
Result<void> validate_filters(const std::string& filters);
Result<void> make_filters(const std::string& filters);

/// Tables of nftables without those whose names begin with "ckpt-".
std::string without_own_tables(const std::string& filters);

}  // namespace ckpt::state
