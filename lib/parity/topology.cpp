#include "lib/parity/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace ckpt::parity {

namespace {

constexpr size_t kMostSymbols = 256;  ///< members and parity of a set: GF(2^8) has no more

/// The ranks of each group, in the order in which the groups appear.
Result<std::vector<std::vector<uint32_t>>> groups_of(const std::vector<Place>& places, FailureGroup group) {
  std::map<std::string, size_t> known;
  std::vector<std::vector<uint32_t>> out;
  for (uint32_t rank = 0; rank < places.size(); ++rank) {
    const std::string& name = group == FailureGroup::kNode ? places[rank].node : places[rank].rack;
    if (name.empty())
      return Error(Code::kUsage, fmt::format("rank {}", rank), "nobody says in which rack it is")
          .with_hint("--topology FILE, with lines of RANK NODE RACK");
    const auto [at, made] = known.emplace(name, out.size());
    if (made) out.emplace_back();
    out[at->second].push_back(rank);
  }
  return out;
}

/// Deals the ranks, group by group, to so many sets as if they were cards: as long as there are as many sets as any
/// group has ranks, no set gets two of one.
std::vector<std::vector<uint32_t>> deal(const std::vector<std::vector<uint32_t>>& groups, size_t sets) {
  std::vector<std::vector<uint32_t>> out(sets);
  size_t next = 0;
  for (const std::vector<uint32_t>& group : groups) {
    for (uint32_t rank : group) out[next++ % sets].push_back(rank);
  }
  return out;
}

/// Whole groups, as many as the field has room for, shared out evenly.
std::vector<std::vector<uint32_t>> whole_groups(const std::vector<std::vector<uint32_t>>& groups, size_t most,
                                                size_t parity) {
  const size_t room = std::max<size_t>((kMostSymbols - parity) / most, 1);
  const size_t sets = (groups.size() + room - 1) / room;
  std::vector<std::vector<uint32_t>> out(sets);
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<uint32_t>& set = out[i * sets / groups.size()];
    set.insert(set.end(), groups[i].begin(), groups[i].end());
  }
  return out;
}

}  // namespace

Result<std::vector<std::vector<uint32_t>>> make_sets(const std::vector<Place>& places, const SetRules& rules) {
  CKPT_TRY_ASSIGN(const auto groups, groups_of(places, rules.group));
  size_t most = 0;
  for (const auto& group : groups) most = std::max(most, group.size());
  const bool whole = rules.scheme == Scheme::kRs && most > 1 && rules.parity >= most;
  const size_t wanted = std::max<size_t>(rules.set_size, rules.parity + 1);
  size_t sets = std::max(most, (places.size() + wanted - 1) / wanted);
  sets = (sets + most - 1) / most * most;  // each with one local rank only, where the nodes are alike
  auto out = whole ? whole_groups(groups, most, rules.parity) : deal(groups, sets);
  for (const std::vector<uint32_t>& set : out) {
    // An uneven deal can leave a set too small: then in fewer, larger ones.
    if (set.size() > rules.parity) continue;
    if (!whole && sets > most) out = deal(groups, most);
    break;
  }
  for (const std::vector<uint32_t>& set : out) {
    if (auto code = ErasureCode::make(rules.scheme, static_cast<uint32_t>(set.size()), rules.parity); !code) {
      const char* kind = rules.group == FailureGroup::kNode ? "node" : "rack";
      return Error(Code::kUsage, std::string(scheme_name(rules.scheme)),
                   fmt::format(
                       "{} on {}: {}", places.size() == 1 ? "1 rank" : fmt::format("{} ranks", places.size()),
                       groups.size() == 1 ? fmt::format("1 {}", kind) : fmt::format("{} {}s", groups.size(), kind),
                       code.error().message))
          .with_hint("a set has one rank of each failure group (--failure-group, --topology)");
    }
  }
  return out;
}

}  // namespace ckpt::parity
