#include "formats/torch_save/writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/pickle/emit.h"
#include "formats/torch_save/nest.h"
#include "formats/torch_save/rewrite.h"
#include "formats/torch_save/tensor_pickle.h"
#include "formats/torch_save/walker.h"
#include "formats/zip/writer.h"
#include "lib/base/digest.h"
#include "lib/base/json_text.h"

namespace ckpt::formats {

namespace {

using pickle::NodeId;
using tensor::KeyPath;
using tensor::OutputFile;
using tensor::Part;
using tensor::Piece;
using tensor::Selection;
using tensor::Target;

constexpr size_t kMaxNesting = 64;
constexpr uint64_t kMaxObject =
    64 << 20;  ///< storages in objects and common states: held in memory while the plan is made

/// A source pickle that values are taken from, and the bytes around it.
struct Source {
  std::string name;           ///< for messages
  UniqueFd fd;
  std::vector<std::byte> inline_bytes;
  TorchFile file;
  std::unique_ptr<pickle::Emitter> emitter;
  zip::ByteSource bytes(const tensor::FileRange& where) const {
    return inline_bytes.empty() ? zip::ByteSource(fd.get(), where.offset, where.length, name)
                                : zip::ByteSource(inline_bytes, name);
  }
};

/// A value of the dict: a tensor of the selection, or a node of a source.
struct Leaf {
  std::string key;
  KeyPath path;
  uint32_t target = UINT32_MAX;
  Source* source = nullptr;
  NodeId node = 0;
};

/// A record `data/N`: a tensor's bytes, a storage of the source as it is, or the bytes of one inside an object.
struct Storage {
  uint32_t target = UINT32_MAX;
  tensor::FileRange range;
  std::string bytes;
  uint64_t size(const Selection& selection) const {
    return target != UINT32_MAX ? selection.tensors[target].bytes() : range.length > 0 ? range.length : bytes.size();
  }
};

class TorchLayout : public tensor::Layout, private pickle::Changes {
 public:
  explicit TorchLayout(const Selection& selection) : selection_(selection) {}

  Result<void> plan(const WriteOptions& options) {
    for (uint32_t i = 0; i < selection_.tensors.size(); ++i) {
      const Target& target = selection_.tensors[i];
      const tensor::Tensor& t = selection_.tensor(target);
      CKPT_TRY(check_source(*selection_.source, t, tensor::decode_budget(options.max_memory)));
      payload_bytes += target.bytes();
      leaves_.push_back({target.key, path_of(t.path, target.key), i, nullptr, 0});
    }
    shards = leaves_.size();
    CKPT_TRY_ASSIGN(as_source, write_as_source());
    if (!as_source) CKPT_TRY(write_nested());
    if (!as_source && selection_.source->format == "torch_save") {
      notes.push_back(
          "what is asked for cannot be done to the object itself: dicts and lists, in the order of their keys, take "
          "the place of its own");
    }
    lay_out_records();
    return {};
  }

  uint64_t piece_size(size_t index) const override { return end_of(index) - offset_of(index); }

  /// Piece 0: all before the storages. Then one per storage with its header. The last: the directory.
  Result<Piece> piece(size_t index) const override {
    Piece out;
    out.offset = offset_of(index);
    const size_t storage = index - 1;
    if (index == 0) {
      std::string text = zip_.header(kPickle, crc32(0, as_bytes(pickle_))) + pickle_;
      text += zip_.header(kByteOrder, crc32(0, as_bytes(std::string_view(kLittle)))) + kLittle;
      text += zip_.header(kVersion, crc32(0, as_bytes(std::string_view(kThree)))) + kThree;
      out.parts.push_back(Part::of(std::move(text)));
    } else if (storage < storages_.size()) {
      add_storage(storages_[storage], kFirstStorage + storage, out);
    } else {
      out.parts.push_back(Part::of(zip_.directory(crcs())));
    }
    return out;
  }

 private:
  static constexpr size_t kPickle = 0, kByteOrder = 1, kVersion = 2, kFirstStorage = 3;
  static constexpr const char* kLittle = "little";
  static constexpr const char* kThree = "3\n";

  void add_storage(const Storage& s, size_t record, Piece& out) const {
    const uint64_t size = s.size(selection_);
    const bool inside = size == s.bytes.size();
    out.parts.push_back(Part::of(zip_.header(record, inside ? crc32(0, as_bytes(s.bytes)) : 0) + s.bytes));
    if (inside) return;
    if (s.target == UINT32_MAX) {
      out.parts.push_back(Part::of(s.range));
    } else {
      const Target& target = selection_.tensors[s.target];
      out.parts.push_back(Part::of(target, {tensor::Shape(target.shape.size(), 0), target.shape}));
    }
    for (uint64_t slot : zip_.crc_slots(record)) out.crc_slots.push_back(slot);
  }

  // --- the source's own object, where it is one of torch.save
  // -------------------------------------------------------------
  /// False: it cannot be kept, and nothing was written.
  Result<bool> write_as_source() {
    const tensor::Catalog& catalog = *selection_.source;
    if (catalog.format != "torch_save" || !catalog.common) return false;
    Source* source = open(catalog.root.string(), *catalog.common, {}, this);
    if (source == nullptr) {
      bad_.clear();  // what of it is wanted is said by those that need it
      return false;
    }
    CKPT_TRY_ASSIGN(const Walk walk, walk_state(source->file.graph));
    rewrite_ = plan_rewrite(source->file, walk, selection_);
    auto done =
        rewrite_ ? source->emitter->emit(source->file.graph.root()) : Result<void>(Error(Code::kUnsupported, "", ""));
    if (done) {
      finish_pickle();
      return true;
    }
    if (done.error().code != Code::kUnsupported) return std::move(done).error();
    rewrite_.reset();
    sources_.clear();
    storages_.clear();
    storage_names_.clear();
    same_bytes_.clear();
    out_ = pickle::Writer();
    return false;
  }

  bool leaves_out(NodeId holder, size_t item) const override {
    auto found = rewrite_->pairs.find({holder, item});
    return found != rewrite_->pairs.end() && !found->second;
  }
  const std::string* new_key(NodeId holder, size_t item) const override {
    auto found = rewrite_->pairs.find({holder, item});
    return found != rewrite_->pairs.end() && found->second ? &*found->second : nullptr;
  }
  Result<bool> replace(NodeId node) override {
    auto found = rewrite_->changed.find(node);
    if (found == rewrite_->changed.end()) return false;
    write_target(found->second);
    return true;
  }

  Result<void> write_nested() {
    for (const tensor::ObjectTarget& object : selection_.objects) add_object(object);
    if (selection_.common && selection_.source->common) add_common();
    CKPT_TRY(refused());
    nest();
    CKPT_TRY(refused());
    return write_pickle();
  }

  static KeyPath path_of(const KeyPath& path, const std::string& key) {
    if (path.size() <= kMaxNesting && tensor::leads_to(path, key)) return path;
    return flat(key);
  }
  static KeyPath flat(const std::string& key) { return {{tensor::PathStep::Kind::kName, key, 0}}; }

  uint64_t offset_of(size_t piece) const {
    if (piece == 0) return 0;
    return piece <= storages_.size() ? zip_.header_offset(kFirstStorage + piece - 1) : zip_.directory_offset();
  }
  uint64_t end_of(size_t piece) const { return piece <= storages_.size() ? offset_of(piece + 1) : zip_.size(); }

  // --- what goes in
  // ------------------------------------------------------------------------------------------------------
  /// Opens a pickle of the source; null where it cannot be read, which is noted.
  Source* open(const std::string& name, const tensor::FileRange& where, const std::vector<std::byte>& inline_bytes,
               pickle::Changes* changes = nullptr) {
    auto source = std::make_unique<Source>();
    source->name = name;
    source->inline_bytes = inline_bytes;
    if (inline_bytes.empty()) {
      auto fd = selection_.source->open_file(where.file);
      if (!fd) return note(name, fd.error());
      source->fd = std::move(*fd);
    }
    auto file = read_torch_file(source->bytes(where));
    if (!file) return note(name, file.error());
    source->file = std::move(*file);
    if (source->file.big_endian) return note(name, Error(Code::kUnsupported, "", "comes from a big-endian machine"));
    Source* raw = source.get();
    raw->emitter = std::make_unique<pickle::Emitter>(
        out_, raw->file.graph, [this, raw, where](NodeId id) { return write_storage(*raw, where, id); }, changes);
    sources_.push_back(std::move(source));
    return raw;
  }
  Source* note(const std::string& name, const Error& error) {
    bad_.push_back(name + ": " + error.text());
    return nullptr;
  }

  void add_object(const tensor::ObjectTarget& target) {
    const tensor::Object& object = selection_.object(target);
    Source* source = open(target.key, object.where, object.inline_bytes);
    if (source == nullptr) return;
    NodeId node = source->file.graph.root();
    if (object.wrapped_in_list) {
      auto items = source->file.graph.items(node);
      if (source->file.graph.kind(node) != pickle::Kind::kList || items.size() != 1) {
        note(target.key, Error(Code::kCorrupt, "", "is not a list of one element"));
        return;
      }
      node = items[0];
    }
    leaves_.push_back({target.key, path_of(object.path, target.key), UINT32_MAX, source, node});
  }

  /// Of a torch.save file its values that are no tensors; of Megatron's checkpoints the entries of the common state.
  void add_common() {
    const tensor::Catalog& catalog = *selection_.source;
    Source* source = open("common state", *catalog.common, {});
    if (source == nullptr) return;
    const pickle::Graph& graph = source->file.graph;
    if (catalog.format == "torch_save") {
      auto walk = walk_state(graph);
      if (!walk) return void(note("common state", walk.error()));
      for (Found& found : walk->leaves) {
        KeyPath path = found.path.size() <= kMaxNesting ? std::move(found.path) : flat(found.key);
        leaves_.push_back({std::move(found.key), std::move(path), UINT32_MAX, source, found.node});
      }
      return;
    }
    NodeId root = graph.root();
    if (catalog.common_wrapped_in_list && graph.items(root).size() == 1) root = graph.items(root)[0];
    auto items = graph.items(root);
    for (size_t i = 0; i + 1 < items.size() && graph.kind(root) == pickle::Kind::kDict; i += 2) {
      auto name = graph.as_str(items[i]);
      if (name) leaves_.push_back({std::string(*name), flat(std::string(*name)), UINT32_MAX, source, items[i + 1]});
      else bad_.push_back("common state: has a key that is no text");
    }
    if (graph.kind(root) != pickle::Kind::kDict) bad_.push_back("common state: is no dict");
  }

  Result<void> refused() {
    if (bad_.empty()) return {};
    return with_causes(
        Error(Code::kUnsupported, selection_.source->root.string(), "holds what torch.save files cannot carry")
            .with_hint("leave it out with --exclude or --tensors-only, or give it another name with --rename"),
        std::move(bad_));
  }

  /// Every leaf to its place; one whose nested place is taken goes to the top under its key.
  void nest() {
    size_t flattened = 0;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const Leaf& leaf = leaves_[i];
      if (!is_valid_utf8(leaf.key)) bad_.push_back(leaf.key + ": is not UTF-8");
      if (nest_.add(leaf.path, i)) continue;
      if (nest_.add(flat(leaf.key), i)) ++flattened;
      else bad_.push_back(leaf.key + ": the name is taken");
    }
    if (flattened > 0)
      notes.push_back(fmt::format("{} keys could not be nested and lie at the top of the dict", flattened));
  }

  // --- the pickle
  // --------------------------------------------------------------------------------------------------------
  Result<void> write_pickle() {
    CKPT_TRY(write_node(Nest::kRoot));
    CKPT_TRY(refused());
    finish_pickle();
    return {};
  }
  void finish_pickle() {
    out_.stop();
    pickle_ = out_.take();
  }

  Result<void> write_node(size_t id) {
    const Nest::Node& node = nest_.node(id);
    if (node.leaf != Nest::kNoLeaf) return write_leaf(leaves_[node.leaf]);
    const bool list = nest_.is_list(id);
    if (list) out_.empty_list();
    else out_.empty_dict();
    if (node.children.empty()) return {};
    out_.mark();
    for (const auto& [key, child] : node.children) {
      if (!list && std::get<0>(key)) out_.signed_integer(std::get<1>(key));
      else if (!list) out_.text(std::get<2>(key));
      CKPT_TRY(write_node(child));
    }
    if (list) out_.appends();
    else out_.set_items();
    return {};
  }

  Result<void> write_leaf(const Leaf& leaf) {
    if (leaf.target != UINT32_MAX) {
      write_target(leaf.target);
      return {};
    }
    auto done = leaf.source->emitter->emit(leaf.node);
    if (!done && done.error().code != Code::kUnsupported && !answers_no(done.error().code)) return done;
    if (!done) bad_.push_back(leaf.key + ": " + done.error().text());
    return {};
  }

  /// Tied weights, keys over the same bytes of the source, share a storage here too.
  void write_target(uint32_t index) {
    const Target& target = selection_.tensors[index];
    const tensor::Tensor& t = selection_.tensor(target);
    size_t storage = storages_.size();
    if (t.shards.size() == 1 && t.shards[0].encoding == tensor::Encoding::kRaw && t.shards[0].where.length > 0) {
      const tensor::FileRange& where = t.shards[0].where;
      storage =
          same_bytes_.try_emplace({where.file, where.offset, t.dtype, t.shape, target.dtype, target.shape}, storage)
              .first->second;
    }
    write_tensor(out_, target.dtype, target.shape, std::to_string(storage));
    if (storage == storages_.size()) storages_.push_back({index, {}, {}});
  }

  /// A storage of the source, or of an object in it: a record of ours.
  Result<void> write_storage(Source& source, const tensor::FileRange& where, NodeId id) {
    const pickle::Graph& graph = source.file.graph;
    auto fields = graph.tuple(graph.args(id));
    CKPT_TRY_ASSIGN(pickle::TorchStorage storage, pickle::read_torch_storage(graph, id));
    auto found = source.file.storages.find(std::string(storage.key));
    if (found == source.file.storages.end() || found->second.second != storage.bytes) {
      return fail(Code::kCorrupt, "", "its storage " + std::string(storage.key) + " is missing or of another size");
    }
    if (fields.size() > 5 && !graph.is_none(fields[5]))
      return fail(Code::kUnsupported, "", "holds a view of a legacy storage");
    auto [it, added] = storage_names_.try_emplace({&source, std::string(storage.key)}, storages_.size());
    if (added && source.inline_bytes.empty()) {
      storages_.push_back({UINT32_MAX, {where.file, where.offset + found->second.first, storage.bytes}, {}});
    } else if (added) {
      if (storage.bytes > kMaxObject || object_bytes_ + storage.bytes > kMaxObject) {
        return fail(Code::kUnsupported, "", "holds more than 64 MiB of tensors");
      }
      object_bytes_ += storage.bytes;
      std::string bytes(storage.bytes, 0);
      CKPT_TRY(
          source.bytes(where).read(found->second.first, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}));
      storages_.push_back({UINT32_MAX, {}, std::move(bytes)});
    }
    const pickle::GlobalName* type = graph.global(fields[1]);
    write_storage_id(out_, std::string(type->module), std::string(type->name), std::to_string(it->second),
                     storage.bytes / storage.item, std::string(graph.as_str(fields[3]).value_or("cpu")));
    return {};
  }

  // --- the archive
  // -------------------------------------------------------------------------------------------------------
  void lay_out_records() {
    zip_.add("archive/data.pkl", pickle_.size());
    zip_.add("archive/byteorder", std::string_view(kLittle).size());
    zip_.add("archive/version", std::string_view(kThree).size());
    for (size_t i = 0; i < storages_.size(); ++i) {
      const uint64_t size = storages_[i].size(selection_);
      zip_.add("archive/data/" + std::to_string(i), size, storage_alignment(size));
      if (storages_[i].target == UINT32_MAX && !as_source) payload_bytes += size;
    }
    files.push_back({"model.pt", 0, storages_.size() + 2, zip_.size(), {}});
    last_file = files[0].name;
  }

  /// Those of tensors come from their slots.
  std::vector<uint32_t> crcs() const {
    std::vector<uint32_t> out = {crc32(0, as_bytes(pickle_)), crc32(0, as_bytes(std::string_view(kLittle))),
                                 crc32(0, as_bytes(std::string_view(kThree)))};
    for (const Storage& s : storages_)
      out.push_back(s.size(selection_) == s.bytes.size() ? crc32(0, as_bytes(s.bytes)) : 0);
    return out;
  }

  const Selection& selection_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<Leaf> leaves_;
  std::vector<std::string> bad_;
  Nest nest_;
  pickle::Writer out_;
  std::string pickle_;
  std::vector<Storage> storages_;
  std::map<std::pair<const Source*, std::string>, size_t> storage_names_;
  std::map<std::tuple<uint32_t, uint64_t, tensor::DType, tensor::Shape, tensor::DType, tensor::Shape>, size_t>
      same_bytes_;
  std::optional<Rewrite> rewrite_;
  uint64_t object_bytes_ = 0;
  zip::Layout zip_;
};

}  // namespace

Result<std::unique_ptr<tensor::Layout>> plan_torch_save(const Selection& selection, const WriteOptions& options) {
  auto out = std::make_unique<TorchLayout>(selection);
  CKPT_TRY(out->plan(options));
  return std::unique_ptr<tensor::Layout>(std::move(out));
}

}  // namespace ckpt::formats
