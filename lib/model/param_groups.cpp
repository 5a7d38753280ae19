#include "lib/model/param_groups.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>

#include "lib/tensor/values.h"

namespace ckpt::model {

namespace {

/// What torch's, Megatron's, Apex's and bitsandbytes' optimizers call what they keep.
constexpr std::array<std::string_view, 38> kSlots = {"absmax1",
                                                     "absmax2",
                                                     "acc_delta",
                                                     "ax",
                                                     "eta",
                                                     "exp_avg",
                                                     "exp_avg_diff",
                                                     "exp_avg_sq",
                                                     "exp_avg_sq_col",
                                                     "exp_avg_sq_row",
                                                     "exp_inf",
                                                     "fp32_from_fp16",
                                                     "fp32_param",
                                                     "grad_avg",
                                                     "kahan_comp",
                                                     "master_param",
                                                     "max_exp_avg_sq",
                                                     "mom",
                                                     "momentum",
                                                     "momentum_buffer",
                                                     "mu",
                                                     "mu_product",
                                                     "neg_exp_avg",
                                                     "nu",
                                                     "param",
                                                     "prev",
                                                     "qmap1",
                                                     "qmap2",
                                                     "square_avg",
                                                     "state1",
                                                     "state2",
                                                     "step",
                                                     "step_size",
                                                     "sum",
                                                     "v_col",
                                                     "v_row",
                                                     "variance",
                                                     "xm"};

bool is_slot(std::string_view word) { return std::binary_search(kSlots.begin(), kSlots.end(), word); }

/// Buffers that no optimizer sees.
bool is_buffer(const tensor::Tensor& t) {
  if (!tensor::is_floating(t.dtype)) return true;
  const std::string_view key = t.key;
  const std::string_view last = key.substr(key.rfind('.') + 1);
  constexpr std::array<std::string_view, 8> kBuffers = {
      "running_mean", "running_var", "inv_freq", "cos_cached", "sin_cached", "expert_bias", "e_score_correction_bias",
      "_extra_state"};
  return std::find(kBuffers.begin(), kBuffers.end(), last) != kBuffers.end();
}

struct StateName {
  std::string_view param, slot, optimizer;  ///< `optimizer`: what stands before `state.`
};

/// Nothing: not a state by its name.
std::optional<StateName> parse_state(std::string_view key) {
  constexpr std::string_view kWord = "state.";
  for (size_t at = 0; at < key.size();
       at = key.find('.', at) == std::string_view::npos ? key.size() : key.find('.', at) + 1) {
    if (key.substr(at, kWord.size()) != kWord) continue;
    const std::string_view rest = key.substr(at + kWord.size()), optimizer = key.substr(0, at);
    const size_t first = rest.find('.'), last = rest.rfind('.');
    if (first == std::string_view::npos) return std::nullopt;
    if (is_slot(rest.substr(0, first))) return StateName{rest.substr(first + 1), rest.substr(0, first), optimizer};
    if (is_slot(rest.substr(last + 1))) return StateName{rest.substr(0, last), rest.substr(last + 1), optimizer};
    // optim.state.<parameter>.<slot>.<part of a quantised state>: no slot is last; leave it.
  }
  return std::nullopt;
}

bool is_bucket(std::string_view key) { return key.find(".gbuf_idx_") != std::string_view::npos; }

/// What else an optimizer keeps: its settings, its own counters.
bool is_of_optimizer(std::string_view key, const std::set<std::string_view>& optimizers) {
  return std::any_of(optimizers.begin(), optimizers.end(), [&](std::string_view name) {
    if (key.substr(0, name.size()) != name) return false;
    return !name.empty() || key.substr(0, 13) == "param_groups.";
  });
}

using Index = std::unordered_map<std::string_view, size_t>;  ///< state's name of a parameter -> group

/// The words before a parameter's name in the model's keys that fit most states; nothing when none fits at all.
std::optional<std::string_view> model_prefix(const std::vector<const tensor::Tensor*>& plain, const Index& wanted) {
  std::map<std::string_view, size_t> votes;
  for (const tensor::Tensor* t : plain) {
    const std::string_view key = t->key;
    size_t at = 0;
    for (int depth = 0; depth < 4; ++depth) {
      if (wanted.count(key.substr(at)) != 0) ++votes[key.substr(0, at)];
      const size_t dot = key.find('.', at);
      if (dot == std::string_view::npos) break;
      at = dot + 1;
    }
  }
  // Of equals the model itself before copies of it (an average, a frozen reference), then the shorter.
  auto rank = [](const auto& vote) {
    const std::string_view p = vote.first;
    return std::tuple(vote.second, p.empty() || p == "model." || p == "module.", SIZE_MAX - p.size());
  };
  auto best =
      std::max_element(votes.begin(), votes.end(), [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  if (best == votes.end()) return std::nullopt;
  return best->first;
}

/// Parameters whose slots are a part of what more of the others have.
void find_missing(std::vector<ParamGroup>& groups) {
  using Slots = std::vector<std::string_view>;
  auto slots_of = [](const ParamGroup& g) {
    Slots out;
    for (const OptimizerState& state : g.states) out.push_back(state.slot);
    return out;
  };
  std::map<Slots, size_t> sets;
  for (const ParamGroup& g : groups) {
    if (!g.states.empty()) ++sets[slots_of(g)];
  }
  if (sets.size() > 64) return;  // names of no system
  std::map<Slots, Slots> larger;
  for (const auto& [slots, times] : sets) {
    const std::pair<const Slots, size_t>* best = nullptr;
    for (const auto& other : sets) {
      if (other.second < std::max<size_t>(times, 2) || other.first.size() <= slots.size()) continue;
      if (!std::includes(other.first.begin(), other.first.end(), slots.begin(), slots.end())) continue;
      if (best == nullptr || other.second > best->second) best = &other;
    }
    if (best == nullptr) continue;
    std::set_difference(best->first.begin(), best->first.end(), slots.begin(), slots.end(),
                        std::back_inserter(larger[slots]));
  }
  for (ParamGroup& g : groups) {
    auto found = larger.find(slots_of(g));
    if (found != larger.end()) g.missing.assign(found->second.begin(), found->second.end());
  }
}

}  // namespace

uint64_t ParamGroup::bytes() const {
  uint64_t out = param == nullptr ? 0 : param->bytes();
  for (const OptimizerState& state : states) out += state.tensor->bytes();
  return out;
}

ParamGroups group_params(const tensor::Catalog& catalog) {
  ParamGroups out;
  std::vector<const tensor::Tensor*> plain;
  std::set<std::string_view> optimizers;
  Index by_name;
  for (const tensor::Tensor& t : catalog.tensors) {
    auto state = parse_state(t.key);
    if (!state && is_bucket(t.key)) {
      ++out.by_bucket;
      out.others.push_back(&t);
    } else if (!state) {
      plain.push_back(&t);
    } else {
      ++out.states;
      optimizers.insert(state->optimizer);
      auto [at, fresh] = by_name.try_emplace(state->param, out.groups.size());
      if (fresh) {
        out.groups.emplace_back();
        out.groups.back().name = state->param;
      }
      out.groups[at->second].states.push_back({std::string(state->slot), &t});
    }
  }
  std::erase_if(plain, [&](const tensor::Tensor* t) {
    if (!is_of_optimizer(t->key, optimizers)) return false;
    out.others.push_back(t);
    return true;
  });
  const auto prefix = model_prefix(plain, by_name);
  for (const tensor::Tensor* t : plain) {
    const std::string_view key = t->key;
    const bool model = prefix && key.substr(0, prefix->size()) == *prefix;
    auto found = model ? by_name.find(key.substr(prefix->size())) : by_name.end();
    if (found != by_name.end()) {
      ParamGroup& group = out.groups[found->second];
      group.name = t->key;
      group.param = t;
    } else if (out.states == 0 || (model && !is_buffer(*t))) {
      ParamGroup alone;
      alone.name = t->key;
      alone.param = t;
      out.groups.push_back(std::move(alone));
    } else {
      out.others.push_back(t);
    }
  }
  for (ParamGroup& group : out.groups) {
    std::sort(group.states.begin(), group.states.end(), [](const auto& a, const auto& b) { return a.slot < b.slot; });
  }
  std::sort(out.groups.begin(), out.groups.end(),
            [](const ParamGroup& a, const ParamGroup& b) { return a.name < b.name; });
  find_missing(out.groups);
  return out;
}

namespace {

constexpr size_t kMaxEach = 10;

/// Findings of one kind: the first ones by name, and how many more there are.
class Kind {
 public:
  explicit Kind(std::string message) : message_(std::move(message)) {}
  void add(const std::string& key, const std::string& detail, std::vector<tensor::Finding>& out) {
    if (++seen_ <= kMaxEach) out.push_back({key, "", std::nullopt, message_ + detail, true});
  }
  void finish(std::vector<tensor::Finding>& out) const {
    if (seen_ > kMaxEach) {
      out.push_back({"", "", std::nullopt, std::to_string(seen_ - kMaxEach) + " more of these: " + message_, true});
    }
  }

 private:
  std::string message_;
  size_t seen_ = 0;
};

}  // namespace

std::vector<tensor::Finding> check_params(const ParamGroups& groups) {
  std::vector<tensor::Finding> out;
  const bool any_param = std::any_of(groups.groups.begin(), groups.groups.end(),
                                     [](const ParamGroup& g) { return g.param && !g.states.empty(); });
  if (groups.states == 0) return out;
  Kind orphan("optimizer state of a parameter that is not there"),
      bare("the parameter has no optimizer state (frozen or tied?)"),
      partly("the parameter lacks optimizer state that others have: ");
  for (const ParamGroup& g : groups.groups) {
    if (g.param == nullptr && any_param) orphan.add(g.states.front().tensor->key, "", out);
    if (g.states.empty()) bare.add(g.name, "", out);
    std::string missing;
    for (const std::string& slot : g.missing) missing += (missing.empty() ? "" : ", ") + slot;
    if (!missing.empty() && (g.param != nullptr || !any_param)) partly.add(g.name, missing, out);
  }
  for (const Kind* kind : {&orphan, &bare, &partly}) kind->finish(out);
  return out;
}

std::vector<tensor::Finding> check_kinds(const ParamGroups& groups) {
  struct Rule {
    std::string_view slot;
    std::array<std::string_view, 6> others;  ///< one of them goes with it
    std::string_view note;
  };
  // Lion keeps exp_avg alone; Adafactor exp_avg_sq of vectors beside rows and columns of matrices.
  static constexpr Rule kRules[] = {
      {"exp_avg",
       {"exp_avg_sq", "exp_inf", "exp_avg_sq_row", "exp_avg_sq_col", "exp_avg_diff"},
       " (right for Lion, wrong for Adam)"},
      {"exp_avg_sq", {"exp_avg", "exp_avg_sq_row", "exp_avg_sq_col", "grad_avg"}, " (wrong for Adam)"},
      {"exp_avg_sq_row", {"exp_avg_sq_col"}, ""},
      {"exp_avg_sq_col", {"exp_avg_sq_row"}, ""},
      {"fp32_param", {"exp_avg", "exp_avg_sq", "momentum_buffer"}, ""},
  };
  std::set<std::string_view> slots;
  for (const ParamGroup& g : groups.groups) {
    for (const OptimizerState& state : g.states) slots.insert(state.slot);
  }
  std::vector<tensor::Finding> out;
  for (const Rule& rule : kRules) {
    auto there = [&](std::string_view slot) { return !slot.empty() && slots.count(slot) != 0; };
    if (!there(rule.slot) || std::any_of(rule.others.begin(), rule.others.end(), there)) continue;
    out.push_back({"", "", std::nullopt,
                   "no parameter has the optimizer state " + std::string(rule.others[0]) + ", which goes with " +
                       std::string(rule.slot) + std::string(rule.note),
                   true});
  }
  return out;
}

}  // namespace ckpt::model
