#include "formats/torch_dist/metadata.h"

#include <unordered_map>
#include <unordered_set>

#include "formats/pickle/torch_tensor.h"
#include "lib/base/checked.h"
#include "lib/base/program_cancel.h"

namespace ckpt::formats {

using pickle::Graph;
using pickle::kNoNode;
using pickle::Kind;
using pickle::Meaning;
using pickle::NodeId;

namespace {

constexpr uint32_t kNoEntry = UINT32_MAX;
constexpr size_t kMaxKey = 4096;       ///< bytes
constexpr size_t kMaxAttributes = 32;  ///< of a record that many entries may share: each looks through all of them
constexpr size_t kMaxAxes = 64;
constexpr size_t kBetweenLooks = 1 << 14;  ///< entries, before the stop flag is asked again; even
constexpr uint64_t kShared = 16;       ///< numbers of chunks' shapes for one node: chunks may share their sizes
constexpr size_t kMaxDamage = 1000;    ///< findings that are kept

Unexpected malformed(std::string what) { return fail(Code::kCorrupt, "", "malformed .metadata: " + std::move(what)); }

/// One item of storage_data.
struct Entry {
  std::string_view key;
  std::span<const NodeId> offset;  ///< empty for objects and scalars
  tensor::FileRange item;
  bool zstd = false;
  bool foreign_transform = false;
};

/// Entries by hash, in open addressing: one per chunk of a checkpoint, and nodes of their own would take most of the
/// time.
class EntryIndex {
 public:
  /// Before the first `add`; at most so many follow.
  void reserve(size_t entries) {
    size_t slots = 16;
    while (slots < 2 * entries) slots *= 2;
    slots_.assign(slots, Slot{0, kNoEntry});
  }
  void add(uint64_t hash, uint32_t entry) {
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].entry != kNoEntry) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {static_cast<uint32_t>(hash >> 32), entry};
  }
  /// The last entry added that has this hash and is the wanted one: a dict has each key once, of a hostile pickle's
  /// repetitions the last one counts. kNoEntry after kMaxTries, which only repetitions need.
  template <class Wanted>
  uint32_t last(uint64_t hash, Wanted wanted) const {
    constexpr int kMaxTries = 1000;
    uint32_t found = kNoEntry;
    size_t at = hash & (slots_.size() - 1);
    for (int tries = 0; slots_[at].entry != kNoEntry && tries < kMaxTries;
         at = (at + 1) & (slots_.size() - 1), ++tries) {
      if (slots_[at].hash == static_cast<uint32_t>(hash >> 32) && wanted(slots_[at].entry)) found = slots_[at].entry;
    }
    return found;
  }

 private:
  struct Slot {
    uint32_t hash, entry;
  };
  std::vector<Slot> slots_;
};

class Reader {
 public:
  Reader(const Graph& graph, KeyPaths paths) : graph_(graph), read_paths_(paths == KeyPaths::kRead) {}

  Result<DcpMetadata> run() {
    NodeId root = graph_.root();
    NodeId tensors = graph_.get(root, "state_dict_metadata"), storage = graph_.get(root, "storage_data");
    if (tensors == kNoNode || graph_.kind(tensors) != Kind::kDict) return malformed("it has no state_dict_metadata");
    if (storage == kNoNode || graph_.kind(storage) != Kind::kDict) return malformed("it has no storage_data");
    CKPT_TRY(read_storage(storage));
    NodeId version = graph_.get(root, "version");
    if (version != kNoNode) out_.version = std::string(graph_.as_str(version).value_or(""));
    NodeId mcore = graph_.get(root, "mcore_data");
    if (mcore != kNoNode && graph_.kind(mcore) == Kind::kDict) read_mcore(mcore);
    if (read_paths_) index_planner_data(graph_.get(root, "planner_data"));
    auto pairs = graph_.items(tensors);
    out_.tensors.reserve(pairs.size() / 2);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      auto key = graph_.as_str(pairs[i]);
      if (!key) return malformed("a key is no text");
      if (key->size() > kMaxKey) return malformed("a key is longer than " + std::to_string(kMaxKey) + " bytes");
      // Python keeps one of two; here a string that a memo repeats would be copied each time.
      if (!keys_.insert(*key).second) return malformed("two entries are called " + std::string(*key));
      if (i % kBetweenLooks == 0) CKPT_TRY(check_program_cancel());
      CKPT_TRY(read_value(*key, pairs[i + 1]));
    }
    return std::move(out_);
  }

 private:
  /// An attribute of a record. kNoNode: not there, or of a record that has more than any release of torch writes.
  NodeId attribute(NodeId record, std::string_view name) const {
    const NodeId state = record == kNoNode ? kNoNode : graph_.state(record);
    if (record == kNoNode || graph_.items(record).size() > 2 * kMaxAttributes) return kNoNode;
    if (state != kNoNode && graph_.items(state).size() > 2 * kMaxAttributes) return kNoNode;
    return graph_.get(record, name);
  }

  // --- storage_data
  // ----------------------------------------------------------------------------------------------------
  Result<void> read_storage(NodeId dict) {
    auto pairs = graph_.items(dict);
    entries_.reserve(pairs.size() / 2);
    index_.reserve(pairs.size() / 2);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      if (i % kBetweenLooks == 0) CKPT_TRY(check_program_cancel());
      NodeId fqn = attribute(pairs[i], "fqn"), offset = attribute(pairs[i], "offset");
      auto key = fqn == kNoNode ? std::nullopt : graph_.as_str(fqn);
      if (!key) return malformed("an index of storage_data has no fqn");
      if (key->size() > kMaxKey) return malformed("a key is longer than " + std::to_string(kMaxKey) + " bytes");
      Entry entry;
      entry.key = *key;
      if (offset != kNoNode && !graph_.is_none(offset)) {
        CKPT_TRY_ASSIGN(entry.offset, sizes(offset));
      }
      CKPT_TRY(read_storage_info(pairs[i + 1], entry));
      index_.add(hash(entry.key, entry.offset), static_cast<uint32_t>(entries_.size()));
      entries_.push_back(entry);
    }
    return {};
  }

  Result<void> read_storage_info(NodeId info, Entry& entry) {
    NodeId path = attribute(info, "relative_path"), offset = attribute(info, "offset"),
           length = attribute(info, "length");
    if (path == kNoNode || offset == kNoNode || length == kNoNode)
      return malformed("an entry of storage_data is incomplete");
    auto text = graph_.as_str(path);
    auto from = graph_.as_int(offset), size = graph_.as_int(length);
    if (!text || !from || !size || *from < 0 || *size < 0) return malformed("an entry of storage_data has wrong types");
    if (!checked_add(*from, *size)) return malformed("an item ends past what can be counted");
    if (!is_safe_relative_path(*text))
      return malformed("the path \"" + std::string(*text) + "\" leads out of the checkpoint");
    auto [it, added] = paths_.try_emplace(*text, static_cast<uint32_t>(out_.paths.size()));
    if (added) out_.paths.emplace_back(*text);
    entry.item = {it->second, static_cast<uint64_t>(*from), static_cast<uint64_t>(*size)};
    NodeId transforms = attribute(info, "transform_descriptors");
    if (transforms == kNoNode || graph_.is_none(transforms)) return {};
    auto names = graph_.items(transforms);
    entry.zstd = names.size() == 1 && graph_.as_str(names[0]).value_or("").substr(0, 13) == "stream.zstd/1";
    entry.foreign_transform = !names.empty() && !entry.zstd;
    return {};
  }

  /// The numbers of a torch.Size, still as nodes.
  Result<std::span<const NodeId>> sizes(NodeId id) const {
    if (graph_.call(id) == Meaning::kTorchSize) {
      auto args = graph_.tuple(graph_.args(id));
      if (args.size() == 1) id = args[0];
    }
    if (graph_.kind(id) != Kind::kTuple && graph_.kind(id) != Kind::kList)
      return malformed("an offset is no torch.Size");
    if (graph_.items(id).size() > kMaxAxes) return malformed("an offset has more than 64 axes");
    return graph_.items(id);
  }

  uint64_t hash(std::string_view key, std::span<const NodeId> offset) const {
    uint64_t out = std::hash<std::string_view>()(key);
    for (NodeId id : offset) out = mix(out, static_cast<uint64_t>(graph_.as_int(id).value_or(-1)));
    return out;
  }
  static uint64_t hash(std::string_view key, const tensor::Shape& offset) {
    uint64_t out = std::hash<std::string_view>()(key);
    for (uint64_t n : offset) out = mix(out, n);
    return out;
  }
  static uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9e3779b97f4a7c15;
    return a ^ (a >> 29);
  }

  /// The entry of (key, offset): equality is what Python's MetadataIndex has, the `index` is only a hint.
  uint32_t find(std::string_view key, const tensor::Shape& offset) const {
    return index_.last(hash(key, offset), [&](uint32_t i) {
      const Entry& entry = entries_[i];
      if (entry.key != key || entry.offset.size() != offset.size()) return false;
      for (size_t axis = 0; axis < offset.size(); ++axis) {
        if (graph_.as_int(entry.offset[axis]) != static_cast<int64_t>(offset[axis])) return false;
      }
      return true;
    });
  }

  // --- mcore_data
  // ------------------------------------------------------------------------------------------------------
  void read_mcore(NodeId dict) {
    out_.has_mcore_data = true;
    auto pairs = graph_.items(dict);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      auto key = graph_.as_str(pairs[i]);
      NodeId shape = attribute(pairs[i + 1], "nd_reformulated_orig_global_shape");
      auto sizes = shape == kNoNode ? std::nullopt : pickle::read_sizes(graph_, shape);
      if (key && sizes) originals_[*key] = std::move(*sizes);
    }
  }

  // --- planner_data
  // ----------------------------------------------------------------------------------------------------
  /// {flat key: (name, name, index, ...)}; Megatron has lists of other records there.
  void index_planner_data(NodeId dict) {
    if (dict == kNoNode || graph_.kind(dict) != Kind::kDict) return;
    auto pairs = graph_.items(dict);
    key_paths_.reserve(pairs.size() / 2);
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      auto key = graph_.as_str(pairs[i]);
      const auto steps = graph_.tuple(pairs[i + 1]);
      if (key && (steps.size() > 1 || (steps.size() == 1 && graph_.as_str(steps[0]) != key)))
        key_paths_[*key] = pairs[i + 1];
    }
  }

  /// Empty where there is none, or one that does not make the key.
  tensor::KeyPath key_path(std::string_view key) const {
    tensor::KeyPath out;
    auto found = key_paths_.find(key);
    if (found == key_paths_.end()) return out;
    for (NodeId id : graph_.tuple(found->second)) {
      auto name = graph_.as_str(id);
      auto number = graph_.as_int(id);
      if (!name && !number) return {};
      if (name) out.push_back({tensor::PathStep::Kind::kName, std::string(*name), 0});
      else out.push_back({tensor::PathStep::Kind::kIndex, "", *number});
    }
    if (!tensor::leads_to(out, key)) out.clear();
    return out;
  }

  // --- state_dict_metadata
  // ---------------------------------------------------------------------------------------------
  Result<void> read_value(std::string_view key, NodeId value) {
    if (graph_.call(value) == Meaning::kDcpBytes) return read_object(key);
    if (graph_.call(value) == Meaning::kDcpTensor) return read_tensor(key, value);
    // Another class path: told apart by what it has.
    if (graph_.kind(value) == Kind::kObject && attribute(value, "chunks") != kNoNode) return read_tensor(key, value);
    return malformed(std::string(key) + " is neither a tensor nor an object");
  }

  Result<void> read_object(std::string_view key) {
    uint32_t found = find(key, tensor::Shape());
    if (found == kNoEntry) {
      if (out_.damage.size() < kMaxDamage)
        out_.damage.push_back(
            {std::string(key), ".metadata", std::nullopt, "the object has no entry in storage_data", false});
      return {};
    }
    const Entry& entry = entries_[found];
    if (entry.foreign_transform) {
      out_.unsupported.push_back({std::string(key), "an object that passed through an unknown transform", true});
      return {};
    }
    if (entry.zstd) out_.encoded_objects.emplace_back(key);
    tensor::Object object;
    object.key = std::string(key);
    object.where = entry.item;
    object.path = key_path(key);
    out_.objects.push_back(std::move(object));
    return {};
  }

  /// TensorProperties pickles as a tuple (dtype, layout, requires_grad, memory format, pin_memory); attributes are
  /// taken, too.
  NodeId dtype_node(NodeId properties) const {
    if (properties == kNoNode) return kNoNode;
    NodeId state = graph_.state(properties);
    if (state == kNoNode) return kNoNode;
    auto fields = graph_.tuple(state);
    return fields.empty() ? attribute(properties, "dtype") : fields[0];
  }

  Result<void> read_tensor(std::string_view key, NodeId value) {
    NodeId size = attribute(value, "size"), chunks = attribute(value, "chunks");
    auto shape = pickle::read_sizes(graph_, size);
    if (!shape || chunks == kNoNode || (graph_.kind(chunks) != Kind::kList && graph_.kind(chunks) != Kind::kTuple)) {
      return malformed(std::string(key) + " has no size or no chunks");
    }
    auto dtype = pickle::read_torch_dtype(graph_, dtype_node(attribute(value, "properties")));
    if (!dtype && dtype.error().code == Code::kUnsupported) {
      out_.unsupported.push_back({std::string(key), dtype.error().message});
      return {};
    }
    if (!dtype) return malformed(std::string(key) + " has no dtype");
    DcpTensor out;
    out.tensor.key = std::string(key);
    out.tensor.dtype = dtype->dtype;
    if (dtype->packed) {
      out_.unsupported.push_back({std::string(key), "packed torch." + std::string(dtype->name)});
      return {};
    }
    if (dtype->carried) {
      out_.warnings.push_back(std::string(key) + ": torch." + std::string(dtype->name) + " is handed out as " +
                              std::string(dtype_name(dtype->dtype)));
    }
    out.tensor.shape = std::move(*shape);
    out.tensor.path = key_path(key);
    auto original = originals_.find(key);
    if (original != originals_.end()) out.original = original->second;
    // Every chunk is a record of its own: a list that many tensors share would stand for more of them than there are
    // nodes.
    chunks_ += graph_.items(chunks).size();
    if (chunks_ > graph_.node_count()) return malformed("it has more chunks than records");
    out.tensor.shards.reserve(graph_.items(chunks).size());
    for (NodeId chunk : graph_.items(chunks)) {
      bool known = true;
      CKPT_TRY(read_chunk(chunk, out.tensor, known));
      if (!known) {
        out_.unsupported.push_back({std::string(key), "an item that passed through an unknown transform"});
        return {};
      }
    }
    out_.tensors.push_back(std::move(out));
    return {};
  }

  Result<void> read_chunk(NodeId chunk, tensor::Tensor& t, bool& known) {
    auto offset = pickle::read_sizes(graph_, attribute(chunk, "offsets"));
    auto shape = pickle::read_sizes(graph_, attribute(chunk, "sizes"));
    if (!offset || !shape) return malformed(t.key + " has a chunk without offsets or sizes");
    numbers_ += offset->size() + shape->size();
    if (numbers_ / kShared > graph_.node_count()) return malformed("its chunks repeat sizes without end");
    tensor::Shard shard;
    shard.offset = std::move(*offset);
    shard.shape = std::move(*shape);
    const bool empty = tensor::element_count(shard.shape) == uint64_t{0};
    uint32_t found = find(t.key, shard.offset);
    if (found == kNoEntry && !empty) {
      if (out_.damage.size() < kMaxDamage)
        out_.damage.push_back({t.key, ".metadata", std::nullopt, "a chunk has no entry in storage_data", false});
    } else if (found != kNoEntry && empty) {
      out_.empty_items.push_back(entries_[found].item);
    } else if (found != kNoEntry) {
      // A chunk without elements may share its entry with a full one, which then holds nothing of it.
      shard.item = entries_[found].item;
      if (entries_[found].zstd) shard.encoding = tensor::Encoding::kEncoded;
      known = !entries_[found].foreign_transform;
    }
    t.shards.push_back(std::move(shard));
    return {};
  }

  const Graph& graph_;
  const bool read_paths_;
  DcpMetadata out_;
  std::unordered_map<std::string_view, NodeId> key_paths_;
  std::vector<Entry> entries_;
  EntryIndex index_;
  std::unordered_set<std::string_view> keys_;
  uint64_t chunks_ = 0, numbers_ = 0;
  std::unordered_map<std::string_view, uint32_t> paths_;
  std::unordered_map<std::string_view, tensor::Shape> originals_;
};

}  // namespace

bool is_safe_relative_path(std::string_view path) {
  if (path.empty() || path.size() > 4096) return false;
  for (char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  }
  for (;;) {
    size_t end = path.find('/');
    std::string_view part = path.substr(0, end);
    if (part.empty() || part == "." || part == "..") return false;
    if (end == std::string_view::npos) return true;
    path.remove_prefix(end + 1);
  }
}

Result<DcpMetadata> parse_dcp_metadata(ByteSpan data, uint64_t max_bytes, KeyPaths paths) {
  pickle::Limits limits;
  limits.bytes = max_bytes;
  CKPT_TRY_ASSIGN(pickle::Graph graph, pickle::parse(data, limits));
  if (graph.consumed() != data.size()) return malformed("bytes follow the end of the pickle");
  if (graph.call(graph.root()) != Meaning::kDcpMetadata && graph.kind(graph.root()) != Kind::kObject) {
    return malformed("it holds no Metadata record");
  }
  return Reader(graph, paths).run();
}

}  // namespace ckpt::formats
