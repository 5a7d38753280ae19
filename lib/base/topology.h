// Where the ranks of a job run, and what each is in it: a file with a line for each rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace ckpt {

inline constexpr uint32_t kMostRanks = 1 << 20;

/// What is known of a rank's place.
struct Place {
  std::string node, rack;                    ///< a rack that is not known is empty
  std::map<std::string, uint32_t> groups{};  ///< "dp", "tp", "pp", "cp", "ep": its coordinates, as far as they are told
  bool operator==(const Place&) const = default;
};

/// Lines of `RANK NODE [RACK] [dp=N] [tp=N] [pp=N] [cp=N] [ep=N]`, every rank from 0 on once, in any order; blank lines
/// and what follows a # do not count. All ranks have the same coordinates, no two equal values of them. `name`: for
/// messages.
Result<std::vector<Place>> parse_topology(std::string_view text, const std::string& name);

/// "dp", "tp", "pp", "cp" or "ep".
bool is_group_name(std::string_view name);
/// kUsage: not all have the same coordinates, or two the same values of them.
Result<void> check_groups(const std::vector<Place>& places, const std::string& name);

/// Ranks that have the same of the model: those that differ in dp and cp alone. Each set and all sets in the order of
/// ranks; empty where no coordinates are told.
std::vector<std::vector<uint32_t>> replicas(const std::vector<Place>& places);

}  // namespace ckpt
