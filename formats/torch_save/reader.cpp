#include "formats/torch_save/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/finish.h"
#include "formats/pickle/render.h"
#include "formats/torch_save/walker.h"
#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;
using pickle::TorchTensor;

namespace {

/// An expanded tensor repeats its storage: written out it may be this much larger than what is stored.
constexpr uint64_t kMaxExpansion = 16, kFreeExpansion = 64 << 20;
/// A view that is larger than this is handed out in slabs along the axis of its longest stride: each needs its stored
/// bytes and its own in memory.
constexpr uint64_t kMaxSlab = 64 << 20;

/// Shard::layout is an index.
class ViewDecoder : public tensor::Decoder {
 public:
  uint32_t add(StoredLayout layout) {
    layouts_.push_back(std::move(layout));
    return static_cast<uint32_t>(layouts_.size() - 1);
  }
  bool empty() const { return layouts_.empty(); }
  Result<void> decode(const tensor::Tensor& t, const tensor::Shard& shard, ByteSpan encoded,
                      MutableByteSpan out) const override {
    if (shard.layout >= layouts_.size()) return fail(Code::kBug, t.key, "no decoder");
    return lay_out(layouts_[shard.layout], t.dtype, shard.shape, encoded, out);
  }

 private:
  std::vector<StoredLayout> layouts_;
};

std::string numbers(const tensor::Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

class Reader {
 public:
  Reader(const TorchFile& file, tensor::Catalog& catalog, DamageLog& damage)
      : file_(file), catalog_(catalog), damage_(damage) {}

  Result<void> run() {
    auto walk = walk_state(file_.graph);
    if (!walk) {
      walk.error().subject = catalog_.root.string();
      return Unexpected(std::move(walk).error());
    }
    catalog_.warnings = std::move(walk->warnings);
    catalog_.unsupported = std::move(walk->unsupported);
    for (Found& found : walk->tensors) add(found);
    if (!decoder_->empty()) catalog_.decoder = decoder_;
    note_shared();
    if (file_.legacy) facts_["legacy"] = true;
    if (file_.big_endian) facts_["byteorder"] = "big";
    if (!facts_.empty()) catalog_.metadata_json = facts_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return {};
  }

 private:
  void add(Found& found) {
    auto t = pickle::read_torch_tensor(file_.graph, found.node);
    auto layout = t ? stored_layout(*t, file_.big_endian) : Result<std::optional<StoredLayout>>(t.error());
    if (!layout) {
      if (layout.error().code == Code::kUnsupported)
        catalog_.unsupported.push_back({found.key, layout.error().message});
      else damage_.add(found.key, "", std::nullopt, layout.error().message);
      return;
    }
    const std::string& name = catalog_.files[0].path;
    auto storage = file_.storages.find(std::string(t->storage_key));
    if (storage == file_.storages.end()) {
      return damage_.add(found.key, name, std::nullopt, "its storage " + std::string(t->storage_key) + " is missing");
    }
    if (storage->second.second != t->storage_bytes) {
      return damage_.add(found.key, name, storage->second.first,
                         "its storage has " + std::to_string(storage->second.second) + " bytes instead of " +
                             std::to_string(t->storage_bytes));
    }
    if (t->torch_dtype.carried) note_carried(found.key, *t);
    place(found, *t, std::move(*layout), storage->second.first);
  }

  void place(Found& found, TorchTensor& t, std::optional<StoredLayout> layout, uint64_t storage) {
    const uint64_t item = tensor::item_size(t.dtype), bytes = tensor::element_count(t.shape).value_or(0) * item;
    tensor::Tensor out;
    out.key = std::move(found.key);
    out.path = std::move(found.path);
    out.dtype = t.dtype;
    out.shape = t.shape;
    tensor::Shard whole;
    whole.offset.assign(t.shape.size(), 0);
    whole.shape = t.shape;
    const uint64_t extent = layout ? stored_extent(*layout, t.dtype, t.shape) : bytes;
    if (bytes != 0) whole.where = {0, storage + t.storage_offset * item, extent};
    if (layout && bytes > kFreeExpansion && bytes / kMaxExpansion > extent) {
      catalog_.unsupported.push_back(
          {out.key, fmt::format("an expanded tensor of {} bytes over {} stored ones", bytes, extent)});
      return;
    }
    if (bytes != 0) ranges_.push_back({whole.where.offset, extent, catalog_.tensors.size()});
    if (layout && bytes != 0) {
      whole.encoding = tensor::Encoding::kEncoded;
      whole.layout = decoder_->add(*layout);
      out.shards = slabs(whole, *layout, t.dtype);
    } else {
      out.shards.push_back(std::move(whole));
    }
    catalog_.tensors.push_back(std::move(out));
  }

  static std::vector<tensor::Shard> slabs(const tensor::Shard& whole, const StoredLayout& layout, tensor::DType dtype) {
    const uint64_t bytes = *tensor::element_count(whole.shape) * tensor::item_size(dtype);
    const uint64_t pieces = std::max(whole.where.length, bytes) / kMaxSlab + 1;
    if (pieces == 1) return {whole};
    size_t axis = 0;
    for (size_t i = 1; i < whole.shape.size(); ++i) {
      if (whole.shape[i] > 1 && (whole.shape[axis] <= 1 || layout.stride[i] > layout.stride[axis])) axis = i;
    }
    const uint64_t step = std::max<uint64_t>(1, whole.shape[axis] / pieces);
    std::vector<tensor::Shard> out;
    for (uint64_t at = 0; at < whole.shape[axis]; at += step) {
      tensor::Shard slab = whole;
      slab.offset[axis] = at;
      slab.shape[axis] = std::min(step, whole.shape[axis] - at);
      slab.where.offset += at * layout.stride[axis] * tensor::item_size(dtype);
      slab.where.length = stored_extent(layout, dtype, slab.shape);
      out.push_back(std::move(slab));
    }
    return out;
  }

  /// What the bytes mean is not in the tensor that is handed out: it is told.
  void note_carried(const std::string& key, const TorchTensor& t) {
    const std::string torch = "torch." + std::string(t.torch_dtype.name);
    nlohmann::json& fact = facts_["carried"][key];
    fact["dtype"] = torch;
    std::string text = key + ": " + torch + " is handed out as " + std::string(dtype_name(t.dtype));
    if (t.torch_dtype.packed) {
      fact["shape"] = t.logical_shape;
      text += ", packed, of shape " + numbers(t.logical_shape);
    }
    if (t.quantiser != pickle::kNoNode) {
      pickle::RenderOptions options;
      options.max_nodes = 1000;
      options.indent = false;
      fact["quantiser"] = nlohmann::json::parse(pickle::to_json(file_.graph, t.quantiser, options), nullptr, false);
      text +=
          "; its quantiser is not: " + fact["quantiser"].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }
    catalog_.warnings.push_back(std::move(text));
  }

  /// Keys whose bytes overlap: tied weights, views into one buffer.
  void note_shared() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    uint64_t end = 0;
    size_t first = 0;
    auto close = [&](size_t last) {
      if (last - first < 2) return;
      nlohmann::json group = nlohmann::json::array();
      for (size_t i = first; i < last; ++i) group.push_back(catalog_.tensors[ranges_[i].tensor].key);
      std::sort(group.begin(), group.end());
      facts_["shared"].push_back(std::move(group));
    };
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (ranges_[i].begin >= end) {
        close(i);
        first = i;
      }
      end = std::max(end, ranges_[i].begin + ranges_[i].length);
    }
    close(ranges_.size());
  }

  struct Range {
    uint64_t begin, length;
    size_t tensor;
  };
  const TorchFile& file_;
  tensor::Catalog& catalog_;
  DamageLog& damage_;
  std::vector<Range> ranges_;
  nlohmann::json facts_ = nlohmann::json::object();
  std::shared_ptr<ViewDecoder> decoder_ = std::make_shared<ViewDecoder>();
};

}  // namespace

bool recognises_torch_save(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return false;
  const std::string extension = path.extension().string();
  constexpr std::array<std::string_view, 4> kExtensions = {".pt", ".pth", ".bin", ".ckpt"};
  if (std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end()) return true;
  auto fd = io::open_file(path, O_RDONLY | O_NONBLOCK);
  std::array<std::byte, kLegacyHead> first{};
  if (!fd || !io::pread_exact(fd->get(), first, 0, "")) return false;
  return as_text(first).substr(0, 4) == "PK\x03\x04" || begins_legacy_file(first);
}

Result<tensor::Catalog> read_torch_save(const fs::path& path, const ReadOptions& options) {
  tensor::Catalog catalog;
  catalog.format = "torch_save";
  catalog.root = path;
  catalog.files.push_back({path.filename().string(), 0});
  CKPT_TRY_ASSIGN(UniqueFd fd, catalog.open_file(0));
  CKPT_TRY_ASSIGN(struct stat st, io::stat_fd(fd.get(), path.string()));
  catalog.files[0].size = static_cast<uint64_t>(st.st_size);
  CKPT_TRY_ASSIGN(TorchFile file, read_torch_file(zip::ByteSource(fd.get(), 0, catalog.files[0].size, path.string())));
  catalog.common = tensor::FileRange{0, 0, catalog.files[0].size};
  DamageLog damage;
  for (const tensor::Checksum& sum : file.wrong) damage.add("", catalog.files[0].path, sum.where.offset, sum.differs());
  catalog.checksums = std::move(file.checksums);
  CKPT_TRY(Reader(file, catalog, damage).run());
  return finish_catalog(std::move(catalog), std::move(damage), options);
}

}  // namespace ckpt::formats
