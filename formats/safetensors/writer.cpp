#include "formats/safetensors/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "formats/safetensors/header.h"
#include "lib/base/checked.h"
#include "lib/base/json_text.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"

namespace ckpt::formats {

namespace {

using tensor::OutputFile;
using tensor::Part;
using tensor::Piece;
using tensor::Selection;
using tensor::Target;

constexpr uint64_t kFileSize = 5'000'000'000;   ///< what the hub and transformers take for a shard
constexpr uint64_t kAlignment = 8;              ///< of the buffer, as the reference writer does
constexpr uint64_t kLargeAlignment =
    4096;  ///< of a large buffer, so that file systems can share blocks and readers map them
constexpr uint64_t kLarge = 1 << 20;

class SafetensorsLayout : public tensor::Layout {
 public:
  explicit SafetensorsLayout(const Selection& selection) : selection_(selection) {}

  Result<void> plan(const WriteOptions& options) {
    CKPT_TRY(check(options));
    order_.resize(selection_.tensors.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      return item_size(selection_.tensors[a].dtype) > item_size(selection_.tensors[b].dtype);
    });
    const bool same = selection_.source->format == "safetensors";
    auto metadata = nlohmann::json::parse(same ? metadata_of(*selection_.source) : "{}");
    metadata.emplace("format", "pt");
    metadata_ = metadata.dump(-1, ' ', true);
    for (const Target& target : selection_.tensors) payload_bytes += target.bytes();
    shards = order_.size();
    CKPT_TRY(make_files(options));
    if (files.size() > 1) add_index();
    last_file = files.back().name;
    return {};
  }

  uint64_t piece_size(size_t index) const override {
    return is_header(index) ? header_of(index).size() : selection_.tensors[subject_[index]].bytes();
  }

  Result<Piece> piece(size_t index) const override {
    Piece out;
    out.offset = offset_[index];
    if (is_header(index)) {
      out.parts.push_back(Part::of(header_of(index)));
      return out;
    }
    const Target& target = selection_.tensors[subject_[index]];
    out.parts.push_back(Part::of(target, {tensor::Shape(target.shape.size(), 0), target.shape}));
    return out;
  }

 private:
  static constexpr uint32_t kHeader = UINT32_MAX;
  bool is_header(size_t piece) const { return subject_[piece] == kHeader; }
  const std::string& header_of(size_t piece) const {
    return headers_[static_cast<size_t>(
                        std::upper_bound(files.begin(), files.begin() + static_cast<ptrdiff_t>(headers_.size()), piece,
                                         [](size_t at, const OutputFile& file) { return at < file.first; }) -
                        files.begin()) -
                    1];
  }

  Result<void> check(const WriteOptions& options) {
    CKPT_TRY(refuse_what_is_no_tensor(selection_, "safetensors"));
    std::vector<std::string> bad;
    for (const Target& target : selection_.tensors) {
      CKPT_TRY(check_source(*selection_.source, selection_.tensor(target), tensor::decode_budget(options.max_memory)));
      if (!safetensors_dtype(target.dtype)) bad.push_back(fmt::format("{}: {}", target.key, dtype_name(target.dtype)));
      if (!is_valid_utf8(target.key)) bad.push_back(target.key + ": is not UTF-8");
      if (target.key == "__metadata__") bad.push_back("__metadata__: means something else in the format");
    }
    if (bad.empty()) return {};
    return with_causes(
        Error(Code::kUnsupported, selection_.source->root.string(), "holds tensors that safetensors cannot hold")
            .with_hint(
                "give them another type with --dtype, another name with --rename, or leave them out with --exclude"),
        std::move(bad));
  }

  Result<void> make_files(const WriteOptions& options) {
    uint64_t limit = options.file_size > 0 ? options.file_size : kFileSize;
    if (options.files > 0) limit = (payload_bytes + options.files - 1) / options.files;
    std::vector<std::pair<size_t, size_t>> ranges;
    size_t first = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < order_.size() && !options.one_file; ++i) {
      const uint64_t size = selection_.tensors[order_[i]].bytes();
      if (i > first && bytes + size > limit && (options.files == 0 || ranges.size() + 1 < options.files)) {
        ranges.emplace_back(first, i);
        first = i;
        bytes = 0;
      }
      bytes += size;
    }
    ranges.emplace_back(first, order_.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
      std::string name = ranges.size() == 1 ? "model.safetensors"
                                            : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, ranges.size());
      CKPT_TRY(add_file(std::move(name), ranges[i].first, ranges[i].second));
    }
    return {};
  }

  Result<void> add_file(std::string name, size_t first, size_t last) {
    std::string header = R"({"__metadata__":)" + metadata_;
    std::vector<uint64_t> begins;
    uint64_t end = 0;
    for (size_t i = first; i < last; ++i) {
      const Target& target = selection_.tensors[order_[i]];
      begins.push_back(end);
      end += target.bytes();
      header += ',';
      if (!try_append_ascii_json_string(header, target.key)) return fail(Code::kBug, target.key, "is not UTF-8");
      header += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            *safetensors_dtype(target.dtype), fmt::join(target.shape, ","), begins.back(), end);
    }
    header += '}';
    const uint64_t length = align_up<uint64_t>(8 + header.size(), end >= kLarge ? kLargeAlignment : kAlignment) - 8;
    if (length > kMaxSafetensorsHeader) {
      return Error(Code::kUsage, name, "would have a header of more than 100 MB, which readers refuse")
          .with_hint("write more files: --file-size");
    }
    header.resize(length, ' ');
    std::string prefix(8, 0);
    for (size_t i = 0; i < 8; ++i) prefix[i] = static_cast<char>(length >> (8 * i) & 0xff);
    const size_t piece = subject_.size();
    subject_.push_back(kHeader);
    offset_.push_back(0);
    for (size_t i = first; i < last; ++i) {
      subject_.push_back(order_[i]);
      offset_.push_back(8 + length + begins[i - first]);
    }
    headers_.push_back(prefix + header);
    files.push_back({std::move(name), piece, subject_.size(), 8 + length + end, {}});
    return {};
  }

  void add_index() {
    OutputFile index{"model.safetensors.index.json", 0, 0, 64 + 64 * order_.size(), {}};
    index.generate = [this](const OutputFile::Sink& sink) { return write_index(sink); };
    files.push_back(std::move(index));
  }

  Result<void> write_index(const OutputFile::Sink& sink) const {
    std::vector<std::pair<std::string_view, std::string_view>> weights;
    for (size_t file = 0; file < headers_.size(); ++file) {
      for (size_t i = files[file].first + 1; i < files[file].last; ++i) {
        weights.emplace_back(selection_.tensors[subject_[i]].key, files[file].name);
      }
    }
    std::sort(weights.begin(), weights.end());
    JsonWriter json(0);  // laid out as transformers does it
    json.open('{');
    json.open("metadata", '{');
    json.member("total_size", payload_bytes);
    json.close();
    json.open("weight_map", '{');
    std::string name;
    for (const auto& [key, file] : weights) {
      name.clear();
      (void)try_append_ascii_json_string(name, key);
      json.key_json(name);
      json.string(file);
      if (json.full()) CKPT_TRY(sink(json.take()));
    }
    return sink(std::move(json).finish());
  }

  const Selection& selection_;
  std::string metadata_;              ///< of each file, JSON
  std::vector<uint32_t> order_;       ///< targets in the order of their bytes
  std::vector<uint32_t> subject_;     ///< per piece: a target, or kHeader
  std::vector<uint64_t> offset_;      ///< per piece: in its file
  std::vector<std::string> headers_;  ///< per data file, with the eight bytes of its length
};

}  // namespace

Result<std::unique_ptr<tensor::Layout>> plan_safetensors(const Selection& selection, const WriteOptions& options) {
  auto out = std::make_unique<SafetensorsLayout>(selection);
  CKPT_TRY(out->plan(options));
  return std::unique_ptr<tensor::Layout>(std::move(out));
}

}  // namespace ckpt::formats
