#include "lib/parity/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace ckpt::parity {

namespace {

/// The members by node, and each member's place there: the nodes in the order of their first members.
struct Nodes {
  std::vector<std::vector<uint32_t>> members;
  std::vector<uint32_t> node_of, local_of;

  explicit Nodes(const std::vector<std::string>& names) {
    std::map<std::string, uint32_t> known;
    for (uint32_t member = 0; member < names.size(); ++member) {
      const auto [at, made] = known.emplace(names[member], static_cast<uint32_t>(members.size()));
      if (made) members.emplace_back();
      node_of.push_back(at->second);
      local_of.push_back(static_cast<uint32_t>(members[at->second].size()));
      members[at->second].push_back(member);
    }
  }
  uint32_t count() const { return static_cast<uint32_t>(members.size()); }
};

/// In which step node `from` sends to node `to`; to itself in the last.
uint32_t step_of(uint32_t from, uint32_t to, uint32_t nodes) { return (to + nodes - from - 1) % nodes; }

void sort_by_step(Schedule& schedule) {
  std::stable_sort(schedule.begin(), schedule.end(), [](const Chain& a, const Chain& b) {
    return std::tie(a.step, a.row, a.target) < std::tie(b.step, b.row, b.target);
  });
}

}  // namespace

Schedule encoding_schedule(const ErasureCode& code, const std::vector<std::string>& names) {
  const Nodes nodes(names);
  Schedule out;
  for (const Sum& sum : encoding(code)) {
    std::map<uint32_t, std::vector<Sum::Term>> by_node;
    for (const Sum::Term& term : sum.terms) by_node[nodes.node_of[term.member]].push_back(term);
    const uint32_t home = nodes.node_of[sum.target], local = nodes.local_of[sum.target];
    for (auto& [node, hops] : by_node) {
      // The ring inside the node, which ends at the target's local rank or the last one before it.
      const auto count = static_cast<uint32_t>(nodes.members[node].size());
      auto place = [&, node = node](const Sum::Term& term) {
        return (nodes.local_of[term.member] + count - local % count + count - 1) % count;
      };
      std::sort(hops.begin(), hops.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
      out.push_back({step_of(node, home, nodes.count()), sum.row, sum.target, hops});
    }
  }
  sort_by_step(out);
  return out;
}

std::optional<Schedule> recovery_schedule(const ErasureCode& code, const std::vector<std::string>& names,
                                          const std::vector<Loss>& losses) {
  const Nodes nodes(names);
  const auto sums = recovery(code, losses);
  if (!sums) return std::nullopt;
  Schedule out;
  for (const Sum& sum : *sums) {
    // Node by node, from another one in each row: who begins a chain receives nothing for it. The target's own node
    // comes last.
    Chain chain{0, sum.row, sum.target, sum.terms};
    const uint32_t home = nodes.node_of[sum.target];
    auto place = [&](const Sum::Term& term) {
      const uint32_t node = nodes.node_of[term.member], count = nodes.count();
      const uint32_t others = std::max(count - 1, 1U), behind = (node + count - home - 1) % count;
      return std::pair(node == home ? count : (behind + sum.row) % others, nodes.local_of[term.member]);
    };
    std::sort(chain.hops.begin(), chain.hops.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
    out.push_back(std::move(chain));
  }
  sort_by_step(out);
  return out;
}

std::vector<Transfer> transfers(const Schedule& schedule) {
  std::vector<Transfer> out;
  for (const Chain& chain : schedule) {
    for (size_t i = 0; i < chain.hops.size(); ++i) {
      const bool last = i + 1 == chain.hops.size();
      out.push_back(
          {chain.step, chain.row, chain.hops[i].member, last ? chain.target : chain.hops[i + 1].member, chain.target});
    }
  }
  return out;
}

size_t buffers_needed(const Schedule& schedule, uint32_t members) {
  std::vector<size_t> needed(members);
  std::set<std::pair<uint32_t, uint32_t>> sources;
  for (const Chain& chain : schedule) {
    for (size_t i = 0; i < chain.hops.size(); ++i) {
      const Sum::Term& hop = chain.hops[i];
      if (sources.emplace(hop.member, chain.row).second) ++needed[hop.member];
      if (i > 0 || hop.factor != 1) ++needed[hop.member];  // what is added to, or the product
    }
    ++needed[chain.target];
  }
  return members == 0 ? 0 : *std::max_element(needed.begin(), needed.end());
}

}  // namespace ckpt::parity
