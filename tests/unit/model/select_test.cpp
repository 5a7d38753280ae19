#include <doctest/doctest.h>

#include "lib/model/convert/select.h"

using namespace ckpt;
using namespace ckpt::formats;
using namespace ckpt::model;

namespace {

tensor::Catalog catalog() {
  tensor::Catalog out;
  out.root = "source";
  for (const char* key :
       {"model.a.weight", "model.b.weight", "model.bias", "optimizer.state.exp_avg.model.a.weight", "other"}) {
    tensor::Tensor t;
    t.key = key;
    t.dtype = tensor::DType::kFloat32;
    t.shape = {4, 6};
    out.tensors.push_back(t);
  }
  for (const char* key : {"optimizer/shard_0_1", "rng/shard_0_1"}) {
    tensor::Object object;
    object.key = key;
    out.objects.push_back(object);
  }
  return out;
}

std::vector<std::string> keys(const Result<Selected>& selected) {
  if (!selected) return {selected.error().text()};
  std::vector<std::string> out;
  for (const auto& target : selected->selection.tensors) out.push_back(target.key);
  for (const auto& object : selected->selection.objects) out.push_back(object.key);
  return out;
}

using Keys = std::vector<std::string>;

}  // namespace

TEST_CASE("select: globs choose, and what is left out is counted") {
  const tensor::Catalog source = catalog();
  SelectRequest request;
  request.include = {"model.**"};
  request.exclude = {"**.bias"};
  auto selected = select(source, request);
  CHECK(keys(selected) == Keys{"model.a.weight", "model.b.weight"});
  CHECK(selected->excluded == 5);
  CHECK(selected->selection.common);
  request = {};
  request.no_optimizer = true;
  CHECK(keys(select(source, request)) ==
        Keys{"model.a.weight", "model.b.weight", "model.bias", "other", "rng/shard_0_1"});
  request.tensors_only = true;
  CHECK(keys(select(source, request)) == Keys{"model.a.weight", "model.b.weight", "model.bias", "other"});
  CHECK_FALSE(select(source, request)->selection.common);
}

TEST_CASE("select: the map first, then each rename in turn, sorted by the new names") {
  const tensor::Catalog source = catalog();
  SelectRequest request;
  request.tensors_only = true;
  request.no_optimizer = true;
  request.map = R"({"other": "model.z"})";
  request.renames = {R"(^model\.(\w)\.=layers.\1.)", "^model=m"};
  CHECK(keys(select(source, request)) == Keys{"layers.a.weight", "layers.b.weight", "m.bias", "m.z"});
}

TEST_CASE("select: rules that cannot be meant are refused") {
  const tensor::Catalog source = catalog();
  auto code = [&](auto change) {
    SelectRequest request;
    change(request);
    auto selected = select(source, request);
    return selected ? Code::kBug : selected.error().code;
  };
  CHECK(code([](auto& r) { r.renames = {"model=x", "y=z"}; }) == Code::kUsage);     // the second fits nothing
  CHECK(code([](auto& r) { r.renames = {R"(model\.(a|b)=same)"}; }) == Code::kUsage);  // two keys, one name
  CHECK(code([](auto& r) { r.renames = {"(=x"}; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.renames = {R"(model=\9)"}; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.renames = {"model"}; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.renames = {"=x"}; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.map = R"({"absent": "x"})"; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.map = R"(["other"])"; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.map = R"({"other": 3})"; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.map = std::string(100'000, '['); }) == Code::kUsage);
  CHECK(code([](auto& r) { r.dtypes = {{"**", tensor::DType::kInt32}}; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.shapes = {"other=8x6"}; }) == Code::kUsage);             // without leave
  CHECK(code([](auto& r) { r.shapes = {"other=8"}, r.allow_shape_mismatch = true; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.shapes = {"other"}; }) == Code::kUsage);
  CHECK(code([](auto& r) { r.shapes = {"other=8x"}; }) == Code::kUsage);
  CHECK_FALSE(parse_dtype_rule("**=float"));
  CHECK(parse_dtype_rule("bfloat16")->first == "**");
}

TEST_CASE("select: types and shapes are given by the source's names, each change of shape is told") {
  const tensor::Catalog source = catalog();
  SelectRequest request;
  request.include = {"other", "model.bias"};
  request.renames = {"other=renamed"};
  request.dtypes = {{"other", tensor::DType::kBfloat16}, {"**", tensor::DType::kFloat64}};
  request.shapes = {"other=_x8", "**=4x6"};
  request.allow_shape_mismatch = true;
  auto selected = select(source, request);
  REQUIRE(keys(selected) == Keys{"model.bias", "renamed"});
  const auto& tensors = selected->selection.tensors;
  CHECK(tensors[0].dtype == tensor::DType::kFloat64);
  CHECK(tensors[1].dtype == tensor::DType::kBfloat16);
  CHECK(tensors[1].shape == tensor::Shape{4, 8});
  REQUIRE(selected->selection.notes.size() == 1);
  CHECK(selected->selection.notes[0].find("4x6 became 4x8") != std::string::npos);
}

TEST_CASE("select: --unflatten refuses what is flattened still") {
  tensor::Catalog source = catalog();
  SelectRequest request;
  request.unflatten = true;
  for (tensor::Tensor& t : source.tensors) t.key = t.key == "other" ? "a.gbuf_idx_0.b" : t.key;
  auto selected = select(source, request);
  REQUIRE_FALSE(selected);
  CHECK(selected.error().code == Code::kUnsupported);
  CHECK(selected.error().causes.size() == 1);
  source.tensors[3].shape = {1, 2, 12};  // optimizer.state.exp_avg.model.a.weight
  CHECK(select(source, request).error().causes.size() == 2);
  request.no_optimizer = true;
  request.exclude = {"a.**"};
  CHECK(select(source, request));
}
