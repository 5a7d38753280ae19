// The JSON of a layout.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/checked.h"
#include "lib/model/rank_plan.h"

namespace ckpt::model {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxRanks = 1 << 24;

Error wrong(const std::string& where, const std::string& what) { return Error(Code::kUsage, where, what); }

/// A whole number from `least` on.
std::optional<uint64_t> count_of(const Json& value, uint64_t least) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() < least) return std::nullopt;
  return value.get<uint64_t>();
}

Result<void> parse_world(const Json& world, RankLayout& out) {
  if (world.is_object()) {
    for (const auto& item : world.items()) {
      auto size = count_of(item.value(), 1);
      if (!size || item.key().empty())
        return wrong("world", R"(has to name dimensions with their sizes, as {"tp": 2, "dp": 3})");
      out.world.push_back({item.key(), *size});
    }
  } else {
    auto size = count_of(world, 1);
    if (!size) return wrong("world", "has to be a number of ranks, or an object of dimensions");
    out.world.push_back({"rank", *size});
  }
  uint64_t ranks = 1;
  for (const Dimension& dimension : out.world) {
    ranks = checked_mul(ranks, dimension.size).value_or(kMaxRanks + 1);
    if (ranks > kMaxRanks) return wrong("world", "has more ranks than any machine");
  }
  return {};
}

Result<size_t> parse_dimension(const Json& name, const RankLayout& layout, const std::string& where) {
  if (name.is_string()) {
    for (size_t i = 0; i < layout.world.size(); ++i) {
      if (layout.world[i].name == name.get_ref<const std::string&>()) return i;
    }
  }
  return wrong(where, name.dump(-1, ' ', true, Json::error_handler_t::replace) + " is no dimension of the world");
}

Result<Cut> parse_cut(const Json& cut, const RankLayout& layout, const std::string& where) {
  const char* kForm = "a cut is [axis, dimension], [axis, dimension, fragments] or [axis, offset, fragments]";
  if (!cut.is_array() || cut.size() < 2 || cut.size() > 3 || !cut[0].is_number_integer()) return wrong(where, kForm);
  Cut out;
  if (cut[0].is_number_unsigned() && cut[0].get<uint64_t>() > INT64_MAX) return wrong(where, kForm);
  out.axis = cut[0].get<int64_t>();
  std::optional<uint64_t> fragments;
  if (cut.size() == 3) {
    fragments = count_of(cut[2], 1);
    if (!fragments) return wrong(where, kForm);
  }
  uint64_t last = 0;
  if (auto offset = count_of(cut[1], 0)) {
    if (!fragments) return wrong(where, kForm);
    out.offset = last = *offset;
  } else {
    CKPT_TRY_ASSIGN(out.dimension, parse_dimension(cut[1], layout, where));
    last = layout.world[*out.dimension].size - 1;
  }
  out.fragments = fragments.value_or(last + 1);
  if (last >= out.fragments)
    return wrong(where, "offset " + std::to_string(last) + " of " + std::to_string(out.fragments) + " fragments");
  return out;
}

Result<LayoutRule> parse_rule(const std::string& glob, const Json& rule, const RankLayout& layout) {
  LayoutRule out;
  out.glob = glob;
  if (rule.is_null()) {
    out.skip = true;
    return out;
  }
  const Json* cuts = &rule;
  if (rule.is_object()) {
    for (const auto& item : rule.items()) {
      if (item.key() != "cut" && item.key() != "flatten" && item.key() != "uneven")
        return wrong(glob, "does not know \"" + item.key() + "\"");
    }
    static const Json kNone = Json::array();
    cuts = rule.contains("cut") ? &rule["cut"] : &kNone;
    if (rule.contains("uneven")) {
      if (!rule["uneven"].is_boolean()) return wrong(glob, "\"uneven\" is true or false");
      out.uneven = rule["uneven"].get<bool>();
    }
    if (rule.contains("flatten")) {
      CKPT_TRY_ASSIGN(out.flatten, parse_dimension(rule["flatten"], layout, glob));
    }
  }
  if (!cuts->is_array()) return wrong(glob, "has to be a list of cuts, an object with \"cut\", or null");
  for (const Json& cut : *cuts) {
    CKPT_TRY_ASSIGN(Cut parsed, parse_cut(cut, layout, glob));
    out.cuts.push_back(parsed);
  }
  return out;
}

}  // namespace

Result<RankLayout> parse_layout(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return wrong("", "is not a JSON object");
  for (const auto& item : json.items()) {
    if (item.key() != "world" && item.key() != "tensors") return wrong("", "does not know \"" + item.key() + "\"");
  }
  if (!json.contains("world") || !json.contains("tensors") || !json["tensors"].is_object()) {
    return wrong("", "needs \"world\" and an object \"tensors\"");
  }
  RankLayout out;
  CKPT_TRY(parse_world(json["world"], out));
  for (const auto& item : json["tensors"].items()) {
    CKPT_TRY_ASSIGN(LayoutRule rule, parse_rule(item.key(), item.value(), out));
    out.rules.push_back(std::move(rule));
  }
  return out;
}

}  // namespace ckpt::model
