#include "lib/base/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace ckpt {

namespace {

constexpr std::array<std::string_view, 5> kGroups = {"dp", "tp", "pp", "cp", "ep"};

std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> out;
  for (size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    out.push_back(line.substr(at, end - at));
    at = end;
  }
  return out;
}

std::optional<uint32_t> number_of(std::string_view word) {
  uint32_t out = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), out);
  if (error != std::errc() || stop != word.data() + word.size() || out >= kMostRanks) return std::nullopt;
  return out;
}

/// "dp=3". False: it is no coordinate, or is told a second time.
bool add_group(std::string_view word, Place& place) {
  const size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  if (equals == std::string_view::npos || !is_group_name(name)) return false;
  const auto value = number_of(word.substr(equals + 1));
  return value && place.groups.emplace(name, *value).second;
}

/// Its words from the second one on.
std::optional<Place> place_of(const std::vector<std::string_view>& words) {
  if (words.size() < 2) return std::nullopt;
  Place out;
  out.node = words[1];
  for (size_t i = 2; i < words.size(); ++i) {
    if (i == 2 && words[i].find('=') == std::string_view::npos) out.rack = words[i];
    else if (!add_group(words[i], out)) return std::nullopt;
  }
  return out;
}

bool tell_the_same(const Place& a, const Place& b) {
  return std::equal(a.groups.begin(), a.groups.end(), b.groups.begin(), b.groups.end(),
                    [](const auto& one, const auto& other) { return one.first == other.first; });
}

}  // namespace

bool is_group_name(std::string_view name) { return std::find(kGroups.begin(), kGroups.end(), name) != kGroups.end(); }

Result<void> check_groups(const std::vector<Place>& places, const std::string& name) {
  std::map<std::map<std::string, uint32_t>, size_t> known;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (!tell_the_same(places[rank], places[0]))
      return fail(Code::kUsage, name, fmt::format("tells other coordinates of rank {} than of rank 0", rank));
    const auto [first, made] = known.emplace(places[rank].groups, rank);
    if (!made && !places[rank].groups.empty())
      return fail(Code::kUsage, name, fmt::format("has ranks {} and {} in one place", first->second, rank));
  }
  return {};
}

Result<std::vector<Place>> parse_topology(std::string_view text, const std::string& name) {
  std::map<uint32_t, Place> places;
  size_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(at, end - at));
    at = end + 1, ++number;
    if (words.empty()) continue;
    const auto rank = number_of(words[0]);
    auto place = place_of(words);
    const std::string where = fmt::format("{}:{}", name, number);
    if (!rank || !place)
      return fail(Code::kUsage, where, "is no line of RANK NODE [RACK] [dp=N] [tp=N] [pp=N] [cp=N] [ep=N]");
    if (!places.emplace(*rank, std::move(*place)).second)
      return fail(Code::kUsage, where, fmt::format("rank {} has a line already", *rank));
  }
  std::vector<Place> out;
  for (auto& [rank, place] : places) {
    if (rank != out.size()) break;
    out.push_back(std::move(place));
  }
  if (out.size() != places.size() || out.empty())
    return fail(Code::kUsage, name, fmt::format("says nothing of rank {}", out.size()));
  CKPT_TRY(check_groups(out, name));
  return out;
}

std::vector<std::vector<uint32_t>> replicas(const std::vector<Place>& places) {
  std::map<std::map<std::string, uint32_t>, size_t> known;
  std::vector<std::vector<uint32_t>> out;
  for (uint32_t rank = 0; rank < places.size(); ++rank) {
    auto same = places[rank].groups;
    if (same.empty()) return {};
    same.erase("dp"), same.erase("cp");
    const auto [at, made] = known.emplace(std::move(same), out.size());
    if (made) out.emplace_back();
    out[at->second].push_back(rank);
  }
  return out;
}

}  // namespace ckpt
