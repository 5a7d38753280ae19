#include "formats/torch_dist/rows.h"

#include <fmt/format.h>

#include <charconv>
#include <unordered_map>

#include "formats/torch_dist/reformulated.h"
#include "formats/writers.h"

namespace ckpt::torch_dist {

namespace {

using tensor::Grid;
using tensor::Selection;
using tensor::Shape;
using tensor::Target;

// Releases by their second number (formats.md 1.3, 2.7).
constexpr unsigned kFirstWithTorchDist = 7, kFirstWithRows = 8, kFirstWithRowsOfVectors = 11, kLastWithRows = 15;

Result<unsigned> parse_release(const std::string& text) {
  unsigned minor = 0;
  const char* end = text.data() + text.size();
  bool right = text.rfind("0.", 0) == 0;
  if (right) {
    auto [at, error] = std::from_chars(text.data() + 2, end, minor);
    right = error == std::errc() && (at == end || *at == '.');
  }
  if (!right) return fail(Code::kUsage, text, "is no release of Megatron Core: 0.13, for example");
  if (minor >= kFirstWithTorchDist) return minor;
  return fail(Code::kUsage, "Megatron Core " + text, "does not read torch_dist: 0.7 is the first that does");
}

/// The parts of a grid along each axis, if they are all of one shape; nothing otherwise.
std::optional<Shape> regular_counts(const Selection& selection, const Target& target, const Grid& grid) {
  const Shape first = grid.piece(selection, target, 0).shape;
  Shape counts(first.size());
  uint64_t product = 1;
  for (size_t axis = 0; axis < first.size(); ++axis) {
    if (first[axis] == 0 || target.shape[axis] % first[axis] != 0) return std::nullopt;
    product *= counts[axis] = target.shape[axis] / first[axis];
  }
  if (product != grid.size()) return std::nullopt;
  for (size_t i = 1; i < grid.size(); ++i) {
    if (grid.piece(selection, target, i).shape != first) return std::nullopt;
  }
  return counts;
}

}  // namespace

Result<std::vector<RowCounts>> plan_rows(const Selection& selection, const std::vector<Grid>& grids, const std::string& release,
                                         std::vector<std::string>& notes) {
  std::vector<RowCounts> out(selection.tensors.size());
  if (release.empty()) return out;
  CKPT_TRY_ASSIGN(const unsigned minor, parse_release(release));
  std::unordered_map<std::string_view, size_t> by_key;
  for (size_t i = 0; i < selection.tensors.size(); ++i) by_key.emplace(selection.tensors[i].key, i);
  std::vector<std::string> irregular;
  size_t states = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const Target& target = selection.tensors[i];
    const auto model_key = formats::model_key_of(target.key);
    const auto model = model_key ? by_key.find(*model_key) : by_key.end();
    if (model == by_key.end() || selection.tensors[model->second].shape != target.shape || target.shape.empty()) continue;
    ++states;
    if (minor < kFirstWithRows || minor > kLastWithRows || (target.shape.size() == 1 && minor < kFirstWithRowsOfVectors)) continue;
    const auto counts = regular_counts(selection, selection.tensors[model->second], grids[model->second]);
    if (counts) out[i] = *counts;
    else irregular.push_back(fmt::format("{}: {} is not cut into equal shards", target.key, *model_key));
  }
  if (!irregular.empty()) {
    return formats::with_causes(Error(Code::kUsage, "Megatron Core " + release, "wants optimizer tensors as rows, one for each shard of the model tensor")
                                    .with_hint("cut those with --shard-grid"),
                                std::move(irregular));
  }
  if (states > 0 && minor < kFirstWithRows) {
    notes.push_back(fmt::format("Megatron Core {}'s distributed optimizer takes tensors of more than one axis from zarr alone: model tensors load, optimizer state "
                                "loads without that optimizer", release));
  }
  return out;
}

Shape row_shape(const Target& target, const RowCounts& counts) {
  Shape out = counts;
  uint64_t row = 1;
  for (size_t axis = 0; axis < counts.size(); ++axis) row *= target.shape[axis] / counts[axis];
  out.push_back(row);
  return out;
}

tensor::Region row_of(const Target& target, const RowCounts& counts, const tensor::Region& piece) {
  tensor::Region out{{}, Shape(counts.size(), 1)};
  for (size_t axis = 0; axis < counts.size(); ++axis) out.offset.push_back(piece.offset[axis] / (target.shape[axis] / counts[axis]));
  out.offset.push_back(0);
  out.shape.push_back(row_shape(target, counts).back());
  return out;
}

}  // namespace ckpt::torch_dist
