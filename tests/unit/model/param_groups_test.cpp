#include "lib/model/param_groups.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace ckpt;
using namespace ckpt::tensor;
using namespace ckpt::model;

namespace {

Catalog catalog_of(std::vector<std::string> keys) {
  Catalog out;
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    Tensor t;
    t.key = key;
    t.shape = {2};
    out.tensors.push_back(t);
  }
  return out;
}

/// "name: slot slot [- missing missing]" a group, "?name" an orphan.
std::vector<std::string> described(const ParamGroups& groups) {
  std::vector<std::string> out;
  for (const ParamGroup& g : groups.groups) {
    std::string line = (g.param == nullptr ? "?" : "") + g.name + ":";
    for (const OptimizerState& state : g.states) line += " " + state.slot;
    if (!g.missing.empty()) line += " -";
    for (const std::string& slot : g.missing) line += " " + slot;
    out.push_back(line);
  }
  return out;
}

std::vector<std::string> findings(const std::vector<std::string>& keys) {
  std::vector<std::string> out;
  const Catalog catalog = catalog_of(keys);
  for (const Finding& finding : check_params(group_params(catalog))) {
    CHECK(finding.warning);
    out.push_back(finding.text());
  }
  return out;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("param groups: Megatron's names, also of chained optimizers and behind NeMo's prefix") {
  const Catalog a =
      catalog_of({"decoder.w", "decoder.b", "optimizer.state.exp_avg.decoder.w", "optimizer.state.exp_avg_sq.decoder.w",
                  "optimizer.state.fp32_param.decoder.w", "chained_1.optimizer.state.exp_avg.decoder.b",
                  "chained_1.optimizer.state.exp_avg_sq.decoder.b", "chained_1.optimizer.state.fp32_param.decoder.b"});
  CHECK(described(group_params(a)) ==
        Lines{"decoder.b: exp_avg exp_avg_sq fp32_param", "decoder.w: exp_avg exp_avg_sq fp32_param"});
  CHECK(group_params(a).groups[0].bytes() == 32);
  CHECK(group_params(a).states == 6);
  const Catalog b = catalog_of({"model.w", "optimizer.state.exp_avg.model.w"});
  CHECK(described(group_params(b)) == Lines{"model.w: exp_avg"});
}

TEST_CASE("param groups: torch's names, whatever the model is called") {
  for (std::string prefix : {"", "model.", "module.model.", "state_dict.module.model."}) {
    CAPTURE(prefix);
    const Catalog c = catalog_of({prefix + "layers.0.w", prefix + "layers.0.b", "optim.state.layers.0.w.exp_avg",
                                  "optim.state.layers.0.w.step", "optim.state.layers.0.b.exp_avg",
                                  "optim.state.layers.0.b.step", "optim.param_groups.layers.0.w.lr"});
    CHECK(described(group_params(c)) ==
          Lines{prefix + "layers.0.b: exp_avg step", prefix + "layers.0.w: exp_avg step"});
    CHECK(check_params(group_params(c)).empty());
  }
  const Catalog bare = catalog_of({"w", "state.w.momentum_buffer"});
  CHECK(described(group_params(bare)) == Lines{"w: momentum_buffer"});
}

TEST_CASE("param groups: a copy of the model is not taken for the model") {
  const Catalog c =
      catalog_of({"ema.a", "ema.b", "model.a", "model.b", "optim.state.a.exp_avg", "optim.state.b.exp_avg"});
  const ParamGroups groups = group_params(c);
  CHECK(described(groups) == Lines{"model.a: exp_avg", "model.b: exp_avg"});
  CHECK(groups.others.size() == 2);
  CHECK(check_params(groups).empty());
}

TEST_CASE("param groups: moments that were dropped, and those without a parameter, are findings") {
  CHECK(findings({"a", "b", "c", "optimizer.state.exp_avg.a", "optimizer.state.exp_avg_sq.a",
                  "optimizer.state.exp_avg.b", "optimizer.state.exp_avg_sq.b", "optimizer.state.exp_avg.c"}) ==
        Lines{"c: the parameter lacks optimizer state that others have: exp_avg_sq"});
  CHECK(findings({"a", "b", "optimizer.state.exp_avg.a"}) ==
        Lines{"b: the parameter has no optimizer state (frozen or tied?)"});
  CHECK(findings({"a", "optimizer.state.exp_avg.a", "optimizer.state.exp_avg.gone"}) ==
        Lines{"optimizer.state.exp_avg.gone: optimizer state of a parameter that is not there"});
}

TEST_CASE("param groups: what is right without moments is no finding") {
  CHECK(findings({"a", "b"}).empty());
  CHECK(findings({"optimizer.state.exp_avg.a", "optimizer.state.exp_avg.b"}).empty());
  // Two optimizers: Adam for some, momentum for the others.
  CHECK(findings({"a", "b", "c", "state.a.exp_avg", "state.a.exp_avg_sq", "state.b.momentum_buffer",
                  "state.c.momentum_buffer"})
            .empty());
  CHECK(findings({"bn.weight", "bn.running_mean", "bn.running_var", "state.bn.weight.exp_avg"}).empty());
  Catalog counter = catalog_of({"model.n", "model.w", "optim.state.w.exp_avg"});
  counter.tensors[0].dtype = DType::kInt64;
  CHECK(check_params(group_params(counter)).empty());
  const Catalog buckets =
      catalog_of({"w", "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(a, b).bucket_idx_0.exp_avg"});
  CHECK(group_params(buckets).by_bucket == 1);
  CHECK(check_params(group_params(buckets)).empty());
}

TEST_CASE("param groups: a kind of state that is missing everywhere is a finding") {
  auto kinds = [](const std::vector<std::string>& slots) {
    std::vector<std::string> keys = {"a", "b"}, out;
    for (const std::string& slot : slots) {
      for (const char* param : {"a", "b"}) keys.push_back("optimizer.state." + slot + "." + param);
    }
    const Catalog catalog = catalog_of(keys);
    for (const Finding& finding : check_kinds(group_params(catalog))) out.push_back(finding.text());
    return out;
  };
  CHECK(
      kinds({"exp_avg"}) ==
      Lines{
          "no parameter has the optimizer state exp_avg_sq, which goes with exp_avg (right for Lion, wrong for Adam)"});
  CHECK(kinds({"exp_avg_sq"}) ==
        Lines{"no parameter has the optimizer state exp_avg, which goes with exp_avg_sq (wrong for Adam)"});
  CHECK(kinds({"exp_avg_sq_row"}) ==
        Lines{"no parameter has the optimizer state exp_avg_sq_col, which goes with exp_avg_sq_row"});
  CHECK(kinds({"fp32_param"}) == Lines{"no parameter has the optimizer state exp_avg, which goes with fp32_param"});
  for (const std::vector<std::string>& whole :
       {Lines{"exp_avg", "exp_avg_sq"}, Lines{"exp_avg", "exp_avg_sq", "fp32_param"}, Lines{"exp_avg", "exp_inf"},
        Lines{"exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col"}, Lines{"momentum_buffer"}, Lines{"sum"},
        Lines{"square_avg"}, Lines{}}) {
    CHECK(kinds(whole).empty());
  }
}

TEST_CASE("param groups: many findings of a kind are counted") {
  std::vector<std::string> keys = {"w", "optimizer.state.exp_avg.w"};
  for (int i = 0; i < 1000; ++i) keys.push_back("frozen." + std::to_string(i));
  const Lines lines = findings(keys);
  CHECK(lines.size() == 11);
  CHECK(lines.back() == "990 more of these: the parameter has no optimizer state (frozen or tied?)");
}
