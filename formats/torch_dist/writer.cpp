#include "formats/torch_dist/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "formats/megatron/metadata_json.h"
#include "formats/torch_dist/metadata_writer.h"
#include "formats/torch_dist/object_record.h"
#include "formats/torch_dist/record.h"
#include "formats/torch_dist/rows.h"
#include "formats/torch_save/rewrite.h"
#include "lib/base/checked.h"
#include "lib/base/json_text.h"
#include "lib/base/text.h"

namespace ckpt::torch_dist {

namespace {

using formats::WriteOptions;
using tensor::Catalog;
using tensor::Grid;
using tensor::ObjectTarget;
using tensor::OutputFile;
using tensor::Piece;
using tensor::Selection;
using tensor::Shape;
using tensor::Target;

constexpr uint64_t kMaxItems = 20'000'000;
constexpr uint64_t kBytesPerFile = uint64_t{256}
                                   << 20;  ///< one file per so many, so that workers have files of their own
constexpr unsigned kMaxFiles = 64;

/// One .distcp item: a piece of a tensor, an object, or a value of a state dict that becomes an object.
struct Item {
  enum class Kind : uint8_t { kTensor, kObject, kValue } kind = Kind::kTensor;
  uint32_t subject = 0;             ///< index into Selection::tensors or ::objects, or into the values
  uint64_t piece = 0;               ///< of the tensor's grid
  uint64_t offset = 0, length = 0;  ///< in its file
};

/// Megatron's parser wants "<key>/shard_<offset>_<shape>", with that one slash (formats.md 2.5).
bool is_sharded_object_name(std::string_view key) {
  const size_t slash = key.find('/');
  return slash != std::string_view::npos && slash > 0 && formats::parse_object_place(key.substr(slash + 1)).has_value();
}

Result<void> check_names(const Selection& selection, const std::vector<formats::StoredValue>& values, bool megatron) {
  std::vector<std::string> bad;
  std::unordered_set<std::string_view> seen;
  auto check = [&](const std::string& key, bool object) {
    if (key.empty()) bad.push_back("a key without a name");
    else if (!is_valid_utf8(key)) bad.push_back(key + ": is not UTF-8");
    else if (object && megatron && !is_sharded_object_name(key)) {
      bad.push_back(key + ": is not of the form KEY/shard_OFFSET_SHAPE, which Megatron's loader needs");
    }
    if (!seen.insert(key).second) bad.push_back(key + ": occurs twice");
  };
  for (const Target& target : selection.tensors) check(target.key, false);
  for (const ObjectTarget& object : selection.objects) check(object.key, true);
  for (const formats::StoredValue& value : values) check(value.key, true);
  if (bad.empty()) return {};
  return formats::with_causes(
      Error(Code::kUsage, selection.source->root.string(), "holds keys that torch_dist cannot name")
          .with_hint("leave them out with --exclude"),
      std::move(bad));
}

class DistLayout : public tensor::Layout {
 public:
  DistLayout(const Selection& selection, bool megatron) : selection_(selection), megatron_(megatron) {}

  Result<void> plan(const WriteOptions& options) {
    if (!megatron_ && selection_.common && selection_.source->common) {
      CKPT_TRY_ASSIGN(values_, formats::stored_values(*selection_.source));
    }
    CKPT_TRY(check_names(selection_, values_, megatron_));
    CKPT_TRY(add_tensors(options));
    CKPT_TRY(add_objects());
    place_items(options);
    OutputFile metadata{".metadata", 0, 0, metadata_size(), {}};
    metadata.generate = [this](const OutputFile::Sink& sink) { return write_metadata(sink); };
    files.push_back(std::move(metadata));
    CKPT_TRY(plan_common());
    if (megatron_) add_text("metadata.json", kMetadataJson);
    last_file = megatron_ ? "metadata.json" : ".metadata";
    return {};
  }

  uint64_t piece_size(size_t index) const override { return items_[index].length; }

  Result<Piece> piece(size_t index) const override {
    const Item& item = items_[index];
    Piece out;
    out.offset = item.offset;
    if (item.kind == Item::Kind::kValue) {
      out.parts.push_back(tensor::Part::of(values_[item.subject].file));
      return out;
    }
    if (item.kind == Item::Kind::kObject) {
      CKPT_TRY_ASSIGN(ObjectRecord record,
                      object_record(*selection_.source, object(item), megatron_, Detail::kContent));
      if (record.size != item.length) return fail(Code::kCorrupt, object_target(item).key, "changed while it was read");
      out.parts = std::move(record.parts);
      return out;
    }
    const Target& target = selection_.tensors[item.subject];
    const Grid& grid = grids_[item.subject];
    tensor::Region region = grid.piece(selection_, target, item.piece);
    const TensorRecord record = tensor_record(target.dtype, stored_piece(item.subject, item.piece).shape);
    out.parts.push_back(tensor::Part::of(record.head(0)));
    out.parts.push_back(tensor::Part::of(target, std::move(region), grid.shard(item.piece)));
    out.parts.push_back(tensor::Part::of(record.tail(0)));
    for (uint64_t slot : record.layout.crc_slots(TensorRecord::kData)) out.crc_slots.push_back(item.offset + slot);
    return out;
  }

 private:
  const ObjectTarget& object_target(const Item& item) const { return selection_.objects[item.subject]; }
  const tensor::Object& object(const Item& item) const { return selection_.object(object_target(item)); }

  Shape stored_shape(size_t slot) const {
    const Target& target = selection_.tensors[slot];
    return rows_[slot].empty() ? target.shape : row_shape(target, rows_[slot]);
  }

  /// A piece as loaders know it.
  tensor::Region stored_piece(size_t slot, size_t piece) const {
    const Target& target = selection_.tensors[slot];
    tensor::Region region = grids_[slot].piece(selection_, target, piece);
    return rows_[slot].empty() ? region : row_of(target, rows_[slot], region);
  }

  Result<void> choose_grids(const WriteOptions& options) {
    for (const Target& target : selection_.tensors) {
      CKPT_TRY(check_source(*selection_.source, selection_.tensor(target), tensor::decode_budget(options.max_memory)));
      CKPT_TRY_ASSIGN(Grid chosen, Grid::choose(selection_, target, options.grid));
      grids_.push_back(std::move(chosen));
    }
    rows_.resize(grids_.size());
    if (megatron_) {
      CKPT_TRY_ASSIGN(rows_, plan_rows(selection_, grids_, options, notes));
    }
    for (size_t slot = 0; slot < rows_.size(); ++slot) {
      if (!rows_[slot].empty()) grids_[slot] = Grid::regular(selection_.tensors[slot], rows_[slot]);
    }
    return {};
  }

  Result<void> add_tensors(const WriteOptions& options) {
    CKPT_TRY(choose_grids(options));
    for (uint32_t slot = 0; slot < selection_.tensors.size(); ++slot) {
      const Target& target = selection_.tensors[slot];
      const Grid& grid = grids_[slot];
      if (items_.size() + grid.size() > kMaxItems) {
        return Error(Code::kUsage, target.key, fmt::format("the checkpoint would have more than {} shards", kMaxItems))
            .with_hint("give a larger --shard-size");
      }
      for (size_t i = 0; i < grid.size(); ++i) {
        Item item;
        item.subject = slot;
        item.piece = i;
        item.length = tensor_record(target.dtype, stored_piece(slot, i).shape).size();
        items_.push_back(item);
      }
      payload_bytes += target.bytes();
    }
    shards = items_.size();
    return {};
  }

  Result<void> add_objects() {
    for (uint32_t slot = 0; slot < selection_.objects.size(); ++slot) {
      Item item;
      item.kind = Item::Kind::kObject;
      item.subject = slot;
      CKPT_TRY_ASSIGN(ObjectRecord record, object_record(*selection_.source, object(item), megatron_, Detail::kSize));
      item.length = record.size;
      items_.push_back(item);
      payload_bytes += record.size;
    }
    for (uint32_t slot = 0; slot < values_.size(); ++slot) {
      items_.push_back({Item::Kind::kValue, slot, 0, 0, values_[slot].file.size()});
      payload_bytes += values_[slot].file.size();
    }
    return {};
  }

  /// Consecutive items to files of about equal size, so that what lies together in the source stays together.
  void place_items(const WriteOptions& options) {
    uint64_t total = 0;
    for (const Item& item : items_) total += item.length;
    uint64_t count = options.files;
    if (count == 0 && options.file_size > 0) count = (total + options.file_size - 1) / options.file_size;
    if (count == 0) count = std::clamp<uint64_t>((total + kBytesPerFile - 1) / kBytesPerFile, 1, kMaxFiles);
    count = std::min<uint64_t>(count, items_.size());
    uint64_t done = 0;
    size_t next = 0;
    for (uint64_t file = 0; file < count; ++file) {
      OutputFile out{fmt::format("__0_{}.distcp", file), next, next, 0, {}};
      // Every file gets an item, and every later one is left one.
      const auto goal = static_cast<uint64_t>(static_cast<double>(total) * static_cast<double>(file + 1) /
                                              static_cast<double>(count));
      while (next < items_.size() - (count - file - 1)) {
        Item& item = items_[next];
        if (next > out.first && file + 1 < count && done + item.length / 2 > goal) break;
        item.offset = align_up<uint64_t>(
            out.size, item.kind != Item::Kind::kTensor ? zip::kTorchAlignment : record_alignment(item.length));
        out.size = item.offset + item.length;
        done += item.length;
        ++next;
      }
      out.last = next;
      files.push_back(std::move(out));
    }
    data_files_ = files.size();
  }

  void add_text(const char* name, std::string text) {
    OutputFile file{name, 0, 0, text.size(), {}};
    file.generate = [text = std::move(text)](const OutputFile::Sink& sink) { return sink(text); };
    files.push_back(std::move(file));
  }

  Result<void> plan_common() {
    const Catalog& source = *selection_.source;
    if (!megatron_) return {};
    if (source.common && selection_.common && source.format == "torch_save") {
      CKPT_TRY_ASSIGN(std::string text, formats::file_without_tensors(source));
      add_text("common.pt", text.empty() ? empty_dict_file() : std::move(text));
    } else if (!source.common || !selection_.common) {
      notes.push_back(source.common ? "common.pt holds an empty dict: loaders want the file"
                                    : kNoCommonState);
      add_text("common.pt", empty_dict_file());
    } else if (source.common_wrapped_in_list) {
      CKPT_TRY_ASSIGN(std::string text, unwrapped_common(source));
      add_text("common.pt", std::move(text));
    } else {
      OutputFile file{"common.pt", 0, 0, source.common->length, {}};
      file.generate = [&source](const OutputFile::Sink& sink) {
        return formats::copy_to(source, *source.common, sink);
      };
      files.push_back(std::move(file));
    }
    return {};
  }

  /// About: 160 bytes for a piece's two entries, the keys, and as much for a tensor.
  uint64_t metadata_size() const {
    uint64_t out = 4096 + items_.size() * 400;
    for (const Target& target : selection_.tensors) out += 2 * target.key.size() + 200;
    return out;
  }

  /// Of a plain torch checkpoint whose source knows how its keys were nested.
  std::vector<std::pair<std::string_view, const tensor::KeyPath*>> nests() const {
    std::vector<std::pair<std::string_view, const tensor::KeyPath*>> out;
    if (megatron_) return out;
    for (const Target& target : selection_.tensors) out.emplace_back(target.key, &selection_.tensor(target).path);
    for (const ObjectTarget& target : selection_.objects) out.emplace_back(target.key, &selection_.object(target).path);
    for (const formats::StoredValue& value : values_) out.emplace_back(value.key, &value.path);
    return nested_keys(std::move(out));
  }

  Result<void> write_metadata(const OutputFile::Sink& sink) const {
    MetadataWriter out(sink);
    for (size_t i = 0; i < selection_.tensors.size(); ++i) {
      const Target& target = selection_.tensors[i];
      CKPT_TRY(out.tensor(target.key, target.dtype, stored_shape(i), grids_[i].size(),
                          [&](size_t k) { return stored_piece(i, k); }));
    }
    for (const ObjectTarget& object : selection_.objects) CKPT_TRY(out.object(object.key));
    for (const formats::StoredValue& value : values_) CKPT_TRY(out.object(value.key));
    CKPT_TRY(out.begin_places(nests()));
    for (size_t file = 0; file < data_files_; ++file) {
      for (size_t i = files[file].first; i < files[file].last; ++i)
        CKPT_TRY(write_place(out, items_[i], files[file].name));
    }
    std::vector<std::pair<std::string, Shape>> originals;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i].empty()) originals.emplace_back(selection_.tensors[i].key, selection_.tensors[i].shape);
    }
    if (!originals.empty()) CKPT_TRY(out.original_shapes(originals));
    return out.finish();
  }

  Result<void> write_place(MetadataWriter& out, const Item& item, const std::string& file) const {
    const StorageInfo place{file, item.offset, item.length};
    if (item.kind == Item::Kind::kObject) return out.object_place(object_target(item).key, place);
    if (item.kind == Item::Kind::kValue) return out.object_place(values_[item.subject].key, place);
    const Target& target = selection_.tensors[item.subject];
    return out.tensor_place(target.key, stored_piece(item.subject, item.piece).offset, item.piece, place);
  }

  const Selection& selection_;
  bool megatron_;
  std::vector<Grid> grids_;       ///< one per tensor
  std::vector<RowCounts> rows_;   ///< one per tensor
  std::vector<formats::StoredValue>
      values_;                    ///< of a plain torch checkpoint: what has no keys of its own in the source
  std::vector<Item> items_;       ///< tensors in order, then objects, then values
  size_t data_files_ = 0;
};

}  // namespace

Result<std::unique_ptr<tensor::Layout>> plan_torch_dist(const Selection& selection, const WriteOptions& options) {
  auto out = std::make_unique<DistLayout>(selection, selection.source->format != "dcp");
  CKPT_TRY(out->plan(options));
  return std::unique_ptr<tensor::Layout>(std::move(out));
}

Result<std::unique_ptr<tensor::Layout>> plan_dcp(const Selection& selection, const WriteOptions& options) {
  auto out = std::make_unique<DistLayout>(selection, false);
  CKPT_TRY(out->plan(options));
  return std::unique_ptr<tensor::Layout>(std::move(out));
}

}  // namespace ckpt::torch_dist
