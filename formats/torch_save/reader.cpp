#include "formats/torch_save/reader.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "formats/finish.h"
#include "formats/torch_save/archive.h"
#include "lib/base/checked.h"
#include "lib/base/io.h"

namespace ckpt::formats {

namespace fs = std::filesystem;
using pickle::Graph;
using pickle::Kind;
using pickle::Meaning;
using pickle::NodeId;
using pickle::TorchTensor;

namespace {

constexpr size_t kMaxDepth = 100;
/// An expanded tensor repeats its storage: written out it may be this much larger than what is stored.
constexpr uint64_t kMaxExpansion = 16, kFreeExpansion = 64 << 20;

/// Gathers tensors that are not row-major in their storage.
class StridedDecoder : public tensor::Decoder {
 public:
  void add(const std::string& key, std::vector<uint64_t> stride) { strides_[key] = std::move(stride); }
  bool empty() const { return strides_.empty(); }

  Result<void> decode(const tensor::Tensor& t, const tensor::Shard& shard, ByteSpan encoded, MutableByteSpan out) const override {
    auto found = strides_.find(t.key);
    if (found == strides_.end()) return fail(Code::kBug, t.key, "no decoder");
    const std::vector<uint64_t>& stride = found->second;
    const size_t rank = shard.shape.size(), item = tensor::item_size(t.dtype);
    std::vector<uint64_t> at(rank, 0);
    uint64_t place = 0;
    for (size_t done = 0; done < out.size(); done += item) {
      if ((place + 1) * item > encoded.size()) return fail(Code::kAnswerNo, t.key, "reaches beyond its storage");
      std::memcpy(out.data() + done, encoded.data() + place * item, item);
      for (size_t axis = rank; axis-- > 0;) {
        place += stride[axis];
        if (++at[axis] < shard.shape[axis]) break;
        place -= stride[axis] * shard.shape[axis];
        at[axis] = 0;
      }
    }
    return {};
  }

 private:
  std::unordered_map<std::string, std::vector<uint64_t>> strides_;
};

/// Walks dicts, lists and tuples, not into objects of other kinds.
class Walker {
 public:
  Walker(const TorchFile& file, tensor::Catalog& catalog, DamageLog& damage) : file_(file), catalog_(catalog), damage_(damage) {}

  Result<void> run() {
    frames_.push_back({file_.graph.root(), "", 0, false});
    while (!frames_.empty()) {
      Frame frame = frames_.back();
      frames_.pop_back();
      if (frame.leave) {
        path_.pop_back();
        continue;
      }
      // A graph that shares its parts has far more paths than nodes: an honest state dict does not.
      if (++visited_ > 4 * file_.graph.node_count() + 1000) return fail(Code::kAnswerNo, catalog_.root.string(), "its object repeats itself without end");
      visit(frame);
    }
    if (!decoder_->empty()) catalog_.decoder = decoder_;
    return {};
  }

 private:
  struct Frame {
    NodeId node;
    std::string key;
    size_t depth;
    bool leave;
  };

  void visit(const Frame& frame) {
    const Graph& graph = file_.graph;
    if (pickle::is_torch_tensor(graph, frame.node)) return add(frame.key.empty() ? "tensor" : frame.key, frame.node);
    const Kind kind = graph.kind(frame.node);
    const Meaning call = graph.call(frame.node);
    const bool dict = kind == Kind::kDict || call == Meaning::kOrderedDict || call == Meaning::kDefaultDict;
    if ((!dict && kind != Kind::kList && kind != Kind::kTuple) || frame.depth >= kMaxDepth) return;
    if (std::find(path_.begin(), path_.end(), frame.node) != path_.end()) return;
    path_.push_back(frame.node);
    frames_.push_back({frame.node, "", 0, true});
    auto items = graph.items(frame.node);
    const std::string prefix = frame.key.empty() ? "" : frame.key + ".";
    for (size_t i = 0; i + (dict ? 1 : 0) < items.size(); i += dict ? 2 : 1) {
      auto text = dict ? graph.as_str(items[i]) : std::nullopt;
      auto number = dict ? graph.as_int(items[i]) : std::optional<int64_t>(static_cast<int64_t>(i));
      if (!text && !number) continue;
      NodeId value = items[dict ? i + 1 : i];
      const Kind of = graph.kind(value);
      if (of != Kind::kObject && of != Kind::kDict && of != Kind::kList && of != Kind::kTuple) continue;
      frames_.push_back({value, prefix + (text ? std::string(*text) : std::to_string(*number)), frame.depth + 1, false});
    }
  }

  void add(const std::string& key, NodeId node) {
    auto t = pickle::read_torch_tensor(file_.graph, node);
    if (!t) {
      if (t.error().code == Code::kUnsupported) catalog_.unsupported.push_back(key + ": " + t.error().message);
      else damage_.add(key, "", std::nullopt, t.error().message);
      return;
    }
    const std::string& name = catalog_.files[0].path;
    auto storage = file_.storages.find(std::string(t->storage_key));
    if (storage == file_.storages.end()) return damage_.add(key, name, std::nullopt, "its storage " + std::string(t->storage_key) + " is missing");
    if (storage->second.second != t->storage_bytes) {
      return damage_.add(key, name, storage->second.first, "its storage has " + std::to_string(storage->second.second) + " bytes instead of " +
                                                               std::to_string(t->storage_bytes));
    }
    place(key, *t, storage->second.first);
  }

  void place(const std::string& key, TorchTensor& t, uint64_t storage) {
    const uint64_t item = tensor::item_size(t.dtype), bytes = tensor::element_count(t.shape).value_or(0) * item;
    uint64_t last = 0;
    for (size_t i = 0; i < t.shape.size() && bytes != 0; ++i) last += (t.shape[i] - 1) * t.stride[i];
    tensor::Tensor out;
    out.key = key;
    out.dtype = t.dtype;
    out.shape = t.shape;
    tensor::Shard shard;
    shard.offset.assign(t.shape.size(), 0);
    shard.shape = t.shape;
    if (bytes != 0) shard.where = {0, storage + t.storage_offset * item, (last + 1) * item};
    if (!t.contiguous()) {
      if (bytes > kFreeExpansion && bytes / kMaxExpansion > shard.where.length) {
        catalog_.unsupported.push_back(key + ": an expanded tensor of " + std::to_string(bytes) + " bytes over " +
                                       std::to_string(shard.where.length) + " stored ones");
        return;
      }
      shard.encoding = tensor::Encoding::kEncoded;
      decoder_->add(key, std::move(t.stride));
    }
    out.shards.push_back(std::move(shard));
    catalog_.tensors.push_back(std::move(out));
  }

  const TorchFile& file_;
  tensor::Catalog& catalog_;
  DamageLog& damage_;
  std::vector<Frame> frames_;
  std::vector<NodeId> path_;
  uint64_t visited_ = 0;
  std::shared_ptr<StridedDecoder> decoder_ = std::make_shared<StridedDecoder>();
};

}  // namespace

bool recognises_torch_save(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return false;
  const std::string extension = path.extension().string();
  constexpr std::array<std::string_view, 4> kExtensions = {".pt", ".pth", ".bin", ".ckpt"};
  if (std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end()) return true;
  auto fd = io::open_file(path, O_RDONLY | O_NONBLOCK);
  std::array<std::byte, 5> first{};
  if (!fd || !io::pread_exact(fd->get(), first, 0, "")) return false;
  std::string_view text = as_text(first);
  return text.substr(0, 4) == "PK\x03\x04" || text == std::string_view("\x80\x02\x8a\x0a\x6c", 5);
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
  if (file.legacy) catalog.metadata_json = R"({"legacy": true})";
  DamageLog damage;
  CKPT_TRY(Walker(file, catalog, damage).run());
  return finish_catalog(std::move(catalog), std::move(damage), options);
}

}  // namespace ckpt::formats
