#include "lib/schedule/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/schedule/saves.h"

namespace ckpt::schedule {

namespace {

/// What the rules want, of saves from the newest on.
std::set<std::string> wanted(const std::vector<KnownSave>& saves, const RetentionRules& rules) {
  std::set<std::string> out, days;
  for (size_t i = 0; i < saves.size(); ++i) {
    const KnownSave& save = saves[i];
    const std::string day = save.created.substr(0, 10);
    const bool is_last_of_day = days.count(day) == 0 && days.size() < rules.keep_daily;
    if (is_last_of_day) days.insert(day);
    const bool is_multiple = rules.keep_every > 0 && save.step && *save.step % rules.keep_every == 0;
    if (i == 0 || i < rules.keep_last || is_multiple || is_last_of_day) out.insert(save.name);
  }
  return out;
}

}  // namespace

bool is_newer(const KnownSave& a, const KnownSave& b, Order order) {
  if (order == Order::kNumber && a.step != b.step) return a.step > b.step;
  return a.created != b.created ? a.created > b.created : a.name > b.name;
}

std::vector<std::string> superfluous(std::vector<KnownSave> saves, const RetentionRules& rules, Order order) {
  if (!rules.any()) return {};
  std::sort(saves.begin(), saves.end(), [&](const auto& a, const auto& b) { return is_newer(a, b, order); });
  std::map<std::string, std::string> parents;
  for (const KnownSave& save : saves) parents[save.name] = save.parent;
  std::set<std::string> kept;
  for (const std::string& name : wanted(saves, rules)) {
    // Up to one that is kept already, which a circle of parents is, too.
    for (std::string at = name; !at.empty() && kept.insert(at).second;) {
      auto parent = parents.find(at);
      at = parent == parents.end() ? "" : parent->second;
    }
  }
  std::vector<std::string> out;
  for (auto save = saves.rbegin(); save != saves.rend(); ++save) {
    if (kept.count(save->name) == 0) out.push_back(save->name);
  }
  return out;
}

uint64_t chain_length(const std::vector<KnownSave>& saves, const std::string& name) {
  std::set<std::string> seen;
  for (std::string at = name; !at.empty();) {
    auto save = std::find_if(saves.begin(), saves.end(), [&](const KnownSave& one) { return one.name == at; });
    if (save == saves.end() || !seen.insert(at).second) break;
    at = save->parent;
  }
  return seen.size();
}

std::string next_name(const std::vector<std::string>& names) {
  uint64_t last = 0;
  for (const std::string& name : names) last = std::max(last, step_of(name).value_or(0));
  return fmt::format("{:08}", last + 1);
}

}  // namespace ckpt::schedule
