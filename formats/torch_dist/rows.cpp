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

/// The optimizer tensors of a selection: those of the shape of a model tensor that is selected too.
class Rows {
 public:
  Rows(const Selection& selection, const std::vector<Grid>& grids)
      : selection_(selection), grids_(grids), out_(selection.tensors.size()) {
    std::unordered_map<std::string_view, size_t> by_key;
    for (size_t i = 0; i < selection.tensors.size(); ++i) by_key.emplace(selection.tensors[i].key, i);
    for (size_t i = 0; i < out_.size(); ++i) {
      const Target& target = selection.tensors[i];
      const auto key = formats::model_key_of(target.key);
      const auto model = key ? by_key.find(*key) : by_key.end();
      const bool fits =
          model != by_key.end() && selection.tensors[model->second].shape == target.shape && !target.shape.empty();
      models_.push_back(fits ? std::optional(model->second) : std::nullopt);
      states_ += fits ? 1 : 0;
    }
  }

  size_t states() const { return states_; }
  size_t rows() const { return rows_; }
  size_t made() const { return made_; }
  bool had_rows(size_t slot) const { return !selection_.tensor(selection_.tensors[slot]).rows.empty(); }

  /// Rows as the source has them.
  void keep(size_t slot) {
    const Target& target = selection_.tensors[slot];
    const tensor::Tensor& source = selection_.tensor(target);
    if (source.rows.empty() || source.shape != target.shape) return;
    out_[slot] = source.rows;
    ++rows_;
  }
  /// A row for each shard that the model tensor is written in.
  void make(size_t slot) {
    if (!models_[slot]) return;
    const Target& model = selection_.tensors[*models_[slot]];
    if (auto counts = regular_counts(selection_, model, grids_[*models_[slot]])) {
      out_[slot] = std::move(*counts);
      ++rows_;
      made_ += had_rows(slot) ? 0 : 1;
    } else {
      irregular_.push_back(fmt::format("{}: {} is not cut into equal shards", selection_.tensors[slot].key, model.key));
    }
  }
  Result<std::vector<RowCounts>> take(const std::string& release,
                                      const std::string& hint = "cut those with --shard-grid") {
    if (irregular_.empty()) return std::move(out_);
    return formats::with_causes(Error(Code::kUsage, "Megatron Core " + release,
                                      "wants optimizer tensors as rows, one for each shard of the model tensor")
                                    .with_hint(hint),
                                std::move(irregular_));
  }

 private:
  const Selection& selection_;
  const std::vector<Grid>& grids_;
  std::vector<RowCounts> out_;
  std::vector<std::optional<size_t>> models_;
  std::vector<std::string> irregular_;
  size_t states_ = 0, rows_ = 0, made_ = 0;
};

Result<std::vector<RowCounts>> rows_as_source(const Selection& selection, Rows rows, bool recut,
                                              std::vector<std::string>& notes) {
  for (size_t i = 0; i < selection.tensors.size(); ++i) {
    if (recut && rows.had_rows(i)) rows.make(i);
    else rows.keep(i);
  }
  if (rows.rows() > 0) {
    notes.push_back(fmt::format(
        "{} optimizer tensors stay rows, as Megatron Core 0.8 to 0.15 reads them; 0.16 and later: --mcore 0.16",
        rows.rows()));
  } else if (rows.states() > 0 && selection.source->format != "torch_dist") {
    notes.push_back(
        "optimizer tensors are stored in their own shapes, as Megatron Core 0.7, and 0.16 and later, reads them; 0.8 "
        "to 0.15 with a "
        "distributed optimizer: --mcore VERSION");
  }
  return rows.take("0.8 to 0.15",
                   "the source has rows: cut those with --shard-grid, or --mcore 0.16 stores them in their own shapes");
}

}  // namespace

Result<std::vector<RowCounts>> plan_rows(const Selection& selection, const std::vector<Grid>& grids,
                                         const formats::WriteOptions& options, std::vector<std::string>& notes) {
  const std::string& release = options.mcore;
  Rows rows(selection, grids);
  if (release.empty() || release == "auto") {
    return rows_as_source(selection, std::move(rows), options.grid.shard_size > 0 || !options.grid.rules.empty(),
                          notes);
  }
  CKPT_TRY_ASSIGN(const unsigned minor, parse_release(release));
  for (size_t i = 0; i < selection.tensors.size(); ++i) {
    const size_t axes = selection.tensors[i].shape.size();
    if (minor >= kFirstWithRows && minor <= kLastWithRows && (axes != 1 || minor >= kFirstWithRowsOfVectors))
      rows.make(i);
  }
  if (rows.states() > 0 && minor < kFirstWithRows) {
    notes.push_back(
        fmt::format("Megatron Core {}'s distributed optimizer takes tensors of more than one axis from zarr alone: "
                    "model tensors load, optimizer state "
                    "loads without that optimizer",
                    release));
  }
  if (rows.made() > 0 && selection.source->format == "torch_dist") {
    notes.push_back(
        fmt::format("{} optimizer tensors that the source has in their own shapes became rows: a job without a "
                    "distributed optimizer, which "
                    "wrote them so, loads them only without --mcore",
                    rows.made()));
  }
  return rows.take(release);
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
  for (size_t axis = 0; axis < counts.size(); ++axis)
    out.offset.push_back(piece.offset[axis] / (target.shape[axis] / counts[axis]));
  out.offset.push_back(0);
  out.shape.push_back(row_shape(target, counts).back());
  return out;
}

}  // namespace ckpt::torch_dist
