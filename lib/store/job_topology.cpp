#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "lib/store/job.h"

namespace ckpt::store {

namespace {

/// Those that say it most exactly first: a launcher's are inherited by what has its own ranks.
constexpr std::array<std::string_view, 5> kRankNames = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                                        "SLURM_PROCID"};

std::optional<uint32_t> rank_in(const RankVariables& variables, std::string_view name) {
  for (const auto& [known, value] : variables) {
    uint32_t out = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), out);
    if (known == name && error == std::errc() && stop == value.data() + value.size()) return out;
  }
  return std::nullopt;
}

/// Of torchrun. Its agent may have a RANK, too: in a pod that is the number of the node.
bool is_worker(const RankVariables& variables) {
  return std::any_of(variables.begin(), variables.end(), [](const auto& one) { return one.first == "LOCAL_RANK"; });
}

std::vector<Place> places_of(const std::vector<JobRank>& topology) {
  std::vector<Place> out;
  for (const JobRank& rank : topology) out.push_back(rank.place);
  return out;
}

}  // namespace

std::vector<uint32_t> training_ranks(const std::vector<RankVariables>& processes, uint32_t part) {
  const bool has_workers = std::any_of(processes.begin(), processes.end(), is_worker);
  for (const std::string_view name : kRankNames) {
    std::set<uint32_t> found;
    for (const RankVariables& variables : processes) {
      if (name == kRankNames[0] && has_workers && !is_worker(variables)) continue;
      if (const auto rank = rank_in(variables, name)) found.insert(*rank);
    }
    if (!found.empty()) return {found.begin(), found.end()};
  }
  return {part};
}

std::vector<uint32_t> training_ranks(const JobMember& member, uint32_t part) {
  std::vector<RankVariables> processes;
  for (const JobProcess& process : member.processes) processes.push_back(process.variables);
  return training_ranks(processes, part);
}

Result<std::vector<JobRank>> place_ranks(std::vector<Place> topology,
                                         const std::vector<std::vector<uint32_t>>& ranks_of_parts,
                                         const std::string& name) {
  std::vector<JobRank> out;
  for (Place& place : topology) out.push_back({kMaxRanks, std::move(place)});
  for (uint32_t part = 0; part < ranks_of_parts.size(); ++part) {
    for (const uint32_t rank : ranks_of_parts[part]) {
      if (rank >= out.size())
        return fail(Code::kUsage, name, fmt::format("says nothing of rank {}, which {} has", rank, part_name(part)));
      if (out[rank].part != kMaxRanks)
        return fail(Code::kUsage, name,
                    fmt::format("cannot tell {} from {}: both have rank {}", part_name(out[rank].part),
                                part_name(part), rank));
      out[rank].part = part;
    }
  }
  const auto missing = std::find_if(out.begin(), out.end(), [](const JobRank& one) { return one.part == kMaxRanks; });
  if (missing == out.end()) return out;
  return fail(Code::kUsage, name, fmt::format("tells of rank {}, which no part has", missing - out.begin()));
}

std::vector<std::vector<uint32_t>> replica_parts(const std::vector<JobRank>& topology) {
  std::map<uint32_t, uint32_t> first;  ///< of each part the first one that it belongs to
  auto of = [&](uint32_t part) {
    while (first[part] != part) part = first[part];
    return part;
  };
  const auto sets = replicas(places_of(topology));
  if (sets.empty()) return {};
  for (const JobRank& one : topology) first.emplace(one.part, one.part);
  for (const std::vector<uint32_t>& set : sets) {
    for (const uint32_t rank : set) {
      const uint32_t a = of(topology[set[0]].part), b = of(topology[rank].part);
      first[std::max(a, b)] = std::min(a, b);
    }
  }
  std::map<uint32_t, std::vector<uint32_t>> out;
  for (const auto& [part, belongs] : first) out[of(part)].push_back(part);
  std::vector<std::vector<uint32_t>> sorted;
  for (auto& [part, parts] : out) sorted.push_back(std::move(parts));
  return sorted;
}

std::vector<bool> first_replicas(const std::vector<JobRank>& topology, size_t parts) {
  const auto sets = replicas(places_of(topology));
  std::vector<bool> out(parts, sets.empty());
  for (const std::vector<uint32_t>& set : sets) out[topology[set[0]].part] = true;
  return out;
}

}  // namespace ckpt::store
