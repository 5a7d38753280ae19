#include "formats/zarr/writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "formats/path_keys.h"
#include "lib/base/json_text.h"

namespace ckpt::formats {

namespace {

using tensor::DType;
using tensor::Grid;
using tensor::OutputFile;
using tensor::Part;
using tensor::Piece;
using tensor::Region;
using tensor::Shape;
using tensor::Target;

constexpr uint64_t kMaxChunks = 20'000'000;
constexpr uint64_t kSlab = 64 << 20;  ///< of tensors whose own pieces are no grid
constexpr std::string_view kDocument = "zarr.json";
constexpr std::string_view kGroup = R"({"zarr_format": 3, "node_type": "group", "attributes": {})";

/// One target: its metadata document, then its chunks.
struct Array {
  Grid grid;
  Shape chunk;
  size_t first = 0;  ///< its document's piece, which is also that file's number
};

/// The shape of the chunks whose grid the pieces are; nothing: they are none.
std::optional<Shape> regular_chunk(const tensor::Selection& selection, const Target& target, const Grid& grid) {
  Shape chunk = grid.piece(selection, target, 0).shape;
  uint64_t count = 1;
  for (size_t axis = 0; axis < chunk.size(); ++axis) {
    chunk[axis] = std::max<uint64_t>(chunk[axis], 1);
    count *= std::max<uint64_t>(1, target.shape[axis] / chunk[axis] + (target.shape[axis] % chunk[axis] != 0 ? 1 : 0));
  }
  if (count != grid.size()) return std::nullopt;
  for (size_t i = 0; i < grid.size(); ++i) {
    const Region piece = grid.piece(selection, target, i);
    for (size_t axis = 0; axis < chunk.size(); ++axis) {
      if (piece.offset[axis] % chunk[axis] != 0 ||
          piece.shape[axis] != std::min(chunk[axis], target.shape[axis] - piece.offset[axis]))
        return std::nullopt;
    }
  }
  return chunk;
}

/// complex_float16 was once proposed: no reader knows it.
Result<void> refuse_unknown_types(const tensor::Selection& selection) {
  std::vector<std::string> bad;
  for (const Target& target : selection.tensors) {
    if (target.dtype == DType::kComplex32) bad.push_back(target.key + ": complex32");
  }
  if (bad.empty()) return {};
  return with_causes(
      Error(Code::kUnsupported, selection.source->root.string(), "holds types that readers of zarr3 lack")
          .with_hint("leave them out with --exclude"),
      std::move(bad));
}

std::string_view zero_of(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "false";
    case DType::kComplex64: case DType::kComplex128: return "[0.0, 0.0]";
    case DType::kFloat8E8m0fnu: return "\"0x00\"";  // has no zero
    default: return dtype < DType::kFloat16 ? "0" : "0.0";
  }
}

/// Types that zarr-python does not know; a group whose consolidated metadata names them it does not open at all.
bool is_extension(DType dtype) {
  return dtype == DType::kBfloat16 || (dtype >= DType::kFloat8E4m3fn && dtype <= DType::kFloat8E8m0fnu);
}

class ZarrLayout : public tensor::Layout {
 public:
  explicit ZarrLayout(const tensor::Selection& selection) : selection_(selection) {}

  Result<void> plan(const WriteOptions& options) {
    CKPT_TRY(refuse_what_is_no_tensor(selection_, "zarr3"));
    CKPT_TRY(refuse_unknown_types(selection_));
    CKPT_TRY_ASSIGN(std::string note, check_path_keys(selection_, {"zarr3", "", "__", kDocument}));
    if (!note.empty()) notes.push_back(std::move(note));
    for (const Target& target : selection_.tensors) CKPT_TRY(add_array(target, options));
    for (const Target& target : selection_.tensors) add_groups(target.key);
    OutputFile root{std::string(kDocument), 0, 0, 256 + 512 * arrays_.size(), {}};
    root.generate = [this](const OutputFile::Sink& sink) { return write_root(sink); };
    files.push_back(std::move(root));
    last_file = files.back().name;
    if (recut_ > 0)
      notes.push_back(
          fmt::format("the pieces of {} of {} tensors are no grid of equal chunks: cut into chunks of 64 MiB", recut_,
                      arrays_.size()));
    if (extensions_ > 0) {
      notes.push_back(fmt::format(
          "{} of {} tensors have types that zarr-python lacks (bfloat16, float8): TensorStore and zarrs read "
          "them. The metadata is not consolidated, so that zarr-python opens the others",
          extensions_, arrays_.size()));
    }
    return {};
  }

  uint64_t piece_size(size_t index) const override { return files[index].size; }

  Result<Piece> piece(size_t index) const override {
    const Array& array = *std::prev(std::upper_bound(arrays_.begin(), arrays_.end(), index,
                                                     [](size_t at, const Array& a) { return at < a.first; }));
    const Target& target = selection_.tensors[static_cast<size_t>(&array - arrays_.data())];
    Piece out;
    if (index == array.first) {
      out.parts.push_back(Part::of(document_of(target, array)));
      return out;
    }
    const size_t chunk = index - array.first - 1;
    out.parts.push_back(Part::of(target, array.grid.piece(selection_, target, chunk), array.grid.shard(chunk)));
    if (out.parts[0].region.shape != array.chunk) out.parts[0].padded = array.chunk;
    return out;
  }

 private:
  Result<void> add_array(const Target& target, const WriteOptions& options) {
    CKPT_TRY(check_source(*selection_.source, selection_.tensor(target), tensor::decode_budget(options.max_memory)));
    CKPT_TRY_ASSIGN(Grid grid, Grid::choose(selection_, target, options.grid));
    auto chunk = regular_chunk(selection_, target, grid);
    if (!chunk) {
      grid = Grid::slabs(target, kSlab);
      chunk = regular_chunk(selection_, target, grid);
      ++recut_;
    }
    if (!chunk) return fail(Code::kBug, target.key, "slabs that are no grid");
    Array array{std::move(grid), std::move(*chunk), files.size()};
    const uint64_t chunks = target.bytes() == 0 ? 0 : array.grid.size();
    if (files.size() + chunks >= kMaxChunks)
      return Error(Code::kUsage, target.key, "would make more than 20 million chunks")
          .with_hint("ask for larger pieces: --shard-size");
    add_data_file(target.key + "/" + std::string(kDocument), document_of(target, array).size());
    const uint64_t bytes = *tensor::element_count(array.chunk) * item_size(target.dtype);
    for (uint64_t i = 0; i < chunks; ++i) {
      const Region piece = array.grid.piece(selection_, target, i);
      std::string name = target.key + "/c";
      for (size_t axis = 0; axis < piece.offset.size(); ++axis)
        name += '.' + std::to_string(piece.offset[axis] / array.chunk[axis]);
      add_data_file(std::move(name), bytes);
    }
    arrays_.push_back(std::move(array));
    shards += chunks;
    payload_bytes += target.bytes();
    extensions_ += is_extension(target.dtype) ? 1 : 0;
    return {};
  }

  void add_data_file(std::string name, uint64_t bytes) {
    const size_t index = files.size();
    files.push_back({std::move(name), index, index + 1, bytes, {}});
  }

  /// The groups around an array, but for the root.
  void add_groups(const std::string& key) {
    for (size_t at = key.find('/'); at != std::string::npos; at = key.find('/', at + 1)) {
      if (!groups_.insert(key.substr(0, at)).second) continue;
      OutputFile group{key.substr(0, at + 1) + std::string(kDocument), 0, 0, kGroup.size() + 2, {}};
      group.generate = [](const OutputFile::Sink& sink) { return sink(std::string(kGroup) + "}\n"); };
      files.push_back(std::move(group));
    }
  }

  static std::string document_of(const Target& target, const Array& array) {
    return fmt::format(
        R"({{"zarr_format": 3, "node_type": "array", "shape": [{}], "data_type": "{}", )"
        R"("chunk_grid": {{"name": "regular", "configuration": {{"chunk_shape": [{}]}}}}, )"
        R"("chunk_key_encoding": {{"name": "default", "configuration": {{"separator": "."}}}}, "fill_value": {}, )"
        R"("codecs": [{{"name": "bytes", "configuration": {{"endian": "little"}}}}],)"
        R"( "attributes": {{}}, "storage_transformers": []}})",
        fmt::join(target.shape, ", "), dtype_name(target.dtype), fmt::join(array.chunk, ", "), zero_of(target.dtype));
  }

  Result<void> write_root(const OutputFile::Sink& sink) const {
    std::string text(kGroup);
    if (extensions_ > 0) return sink(text + "}\n");
    text += R"(, "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": {)";
    const char* separator = "\n";
    auto add = [&](std::string_view path, std::string_view document) -> Result<void> {
      text += separator;
      separator = ",\n";
      (void)try_append_ascii_json_string(text, path);
      text.append(": ").append(document);
      if (text.size() < 1 << 16) return {};
      CKPT_TRY(sink(text));
      text.clear();
      return {};
    };
    for (const std::string& group : groups_) CKPT_TRY(add(group, std::string(kGroup) + "}"));
    for (size_t i = 0; i < arrays_.size(); ++i)
      CKPT_TRY(add(selection_.tensors[i].key, document_of(selection_.tensors[i], arrays_[i])));
    return sink(text + "}}}\n");
  }

  const tensor::Selection& selection_;
  std::vector<Array> arrays_;      ///< as the selection's tensors
  std::set<std::string> groups_;
  uint64_t recut_ = 0, extensions_ = 0;
};

}  // namespace

Result<std::unique_ptr<tensor::Layout>> plan_zarr3(const tensor::Selection& selection, const WriteOptions& options) {
  auto out = std::make_unique<ZarrLayout>(selection);
  CKPT_TRY(out->plan(options));
  return std::unique_ptr<tensor::Layout>(std::move(out));
}

}  // namespace ckpt::formats
