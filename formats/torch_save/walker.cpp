#include "formats/torch_save/walker.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "formats/torch_save/archive.h"

namespace ckpt::formats {

using pickle::Graph;
using pickle::Kind;
using pickle::kNoNode;
using pickle::Meaning;
using pickle::NodeId;
using tensor::KeyPath;
using tensor::PathStep;

namespace {

constexpr size_t kMaxDepth = 100;
/// Of what is found, in bytes: keys, paths and records. A graph that shares its parts has far more paths than nodes; an
/// honest one may share a few settings among its layers, and has a node of its own for each key.
constexpr uint64_t kMaxFound = 128 << 20, kFoundPerNode = 1024, kMostFound = uint64_t{4} << 30;
constexpr uint64_t kMaxLooks = 100'000'000;  ///< at parts of containers, each time one is gone through
constexpr size_t kMaxUnreached = 1000;       ///< tensors that are listed, and keys

bool is_sequence(const Graph& graph, NodeId id) {
  const Kind kind = graph.kind(id);
  return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kSet;
}

/// Objects that hold no tensors, whatever they are made of.
bool is_plain_value(const Graph& graph, NodeId id) {
  switch (graph.call(id)) {
    case Meaning::kTorchSize:
    case Meaning::kTorchDevice:
    case Meaning::kTorchDType:
    case Meaning::kGetLayout:
    case Meaning::kPath:
    case Meaning::kComplex:
    case Meaning::kRange:
    case Meaning::kSlice:
    case Meaning::kBytesType:
    case Meaning::kByteArray:
    case Meaning::kCodecsEncode: case Meaning::kBytesIo: case Meaning::kNumpyReconstruct: case Meaning::kNumpyArray:
    case Meaning::kNumpyDType: case Meaning::kNumpyScalar: case Meaning::kGetattr:
      return true;
    default: return false;
  }
}

/// An attribute of an object whose state is a dict, or a pair of a dict and a dict of slots.
NodeId attribute(const Graph& graph, NodeId object, std::string_view name) {
  const NodeId direct = graph.get(object, name), state = graph.state(object);
  if (direct != kNoNode || state == kNoNode) return direct;
  for (NodeId part : graph.tuple(state)) {
    if (const NodeId found = graph.get(part, name); found != kNoNode) return found;
  }
  return kNoNode;
}

class Walker {
 public:
  explicit Walker(const Graph& graph)
      : graph_(graph), holders_(find_holders(graph)), reached_(graph.node_count(), false),
        opened_(graph.node_count(), false), limit_(limit(graph)) {}

  Walk run(NodeId root) {
    frames_.push_back({Found{"", {}, root}, 0, false});
    while (!frames_.empty() || !spare_.empty()) {
      if (frames_.empty()) {
        frames_.push_back(std::move(spare_.back()));
        spare_.pop_back();
      }
      Frame frame = std::move(frames_.back());
      frames_.pop_back();
      if (frame.leave) {
        open_.pop_back();
        continue;
      }
      if (found_ > limit_ || looks_ > kMaxLooks + graph_.node_count() ||
          out_.tensors.size() > 4 * graph_.node_count() + 1000)
        return endless();
      visit(frame);
    }
    name_unreached(root);
    if (nameless_ > kMaxUnreached)
      out_.warnings.push_back(fmt::format("{} more keys are objects that have no text", nameless_ - kMaxUnreached));
    tell_apart();
    out_.objects_opened = !classes_.empty();
    for (const std::string& name : classes_) {
      out_.warnings.push_back("tensors inside objects of class " + name +
                              " are taken out of them; the objects themselves are not kept");
    }
    return std::move(out_);
  }

 private:
  struct Frame {
    Found at;
    size_t depth = 0;
    bool leave = false;
    bool spare = false;  ///< of what it leads to only tensors that nothing else leads to
  };

  static uint64_t limit(const Graph& graph) {
    return std::min(kMaxFound + kFoundPerNode * graph.node_count(), kMostFound);
  }
  static Walk endless() {
    Walk out;
    out.unsupported.push_back({"object", "repeats its parts more often than is followed"});
    return out;
  }

  /// What is not gone into, with all below it: it is named, and its tensors are not named again.
  void refuse(const Frame& frame, std::string why) {
    out_.unsupported.push_back({frame.at.key.empty() ? "tensor" : frame.at.key, std::move(why)});
    refused_.push_back(frame.at.node);
  }

  /// Whatever the object is: no tensor of it is passed over without a word.
  void name_unreached(NodeId root) {
    size_t count = 0;
    for (NodeId id : unreached_tensors(graph_, root, reached_, refused_)) {
      if (++count > kMaxUnreached) continue;
      auto read = pickle::read_torch_tensor(graph_, id);
      const std::string of =
          read ? "storage " + std::string(read->storage_key.substr(0, 64)) : fmt::format("#{}", count);
      out_.unsupported.push_back({"tensor of " + of, "lies where tensors are not looked for"});
    }
    if (count > kMaxUnreached) {
      out_.unsupported.push_back(
          {"tensors", fmt::format("{} more lie where none are looked for", count - kMaxUnreached)});
    }
  }

  /// {'a.b': t} and {'a': {'b': t}} have one key: there the dots in names are escaped.
  void tell_apart() {
    std::vector<Found*> all;
    for (auto* of : {&out_.tensors, &out_.leaves}) {
      for (Found& found : *of) all.push_back(&found);
    }
    for (bool changed = true; changed;) {
      changed = false;
      std::sort(all.begin(), all.end(), [](const Found* a, const Found* b) { return a->key < b->key; });
      for (size_t first = 0, last; first < all.size(); first = last) {
        for (last = first + 1; last < all.size() && all[last]->key == all[first]->key;) ++last;
        for (size_t i = first; i < last && last - first > 1; ++i) {
          std::string escaped = tensor::join_path(all[i]->path, true);
          changed = changed || escaped != all[i]->key;
          all[i]->key = std::move(escaped);
        }
      }
    }
  }

  void visit(Frame& frame) {
    const NodeId id = frame.at.node;
    if (pickle::is_torch_tensor(graph_, id)) return tensor(frame);
    const bool dict = is_dict(graph_, id), sequence = is_sequence(graph_, id);
    const bool object = graph_.kind(id) == Kind::kObject && !dict && !is_plain_value(graph_, id);
    // Cut like torch's distributed checkpoint: dicts always come apart, lists where tensors or dicts are in them.
    const bool apart = dict || (sequence && (holds(id) || has_dicts(id))) || (object && holds(id));
    if (!apart) return leaf(frame);
    if (std::find(open_.begin(), open_.end(), id) != open_.end()) return leaf(frame);
    // Attributes of modules lead back to what has been gone through by its own name.
    if (frame.spare && opened_[id]) return;
    opened_[id] = true;
    if (frame.depth >= kMaxDepth && frame.spare) return;
    if (frame.depth >= kMaxDepth) return refuse(frame, fmt::format("is nested more than {} deep", kMaxDepth));
    if (dict && graph_.items(id).empty() && !holds(id)) return leaf(frame);
    open_.push_back(id);
    frames_.push_back({Found{"", {}, id}, 0, true});
    if (dict) return open_dict(frame);
    if (sequence) return sequence_items(frame, graph_.items(id));
    open_object(frame);
  }

  void open_dict(Frame& frame) {
    const auto of = dict_pairs(graph_, frame.at.node);
    if (!of) return refuse(frame, "is a dict made of what is not read");
    looks_ += of->size();
    pairs(frame, *of);
    frame.at.plain = false;
    holders_of(frame, graph_.state(frame.at.node));
  }

  void leaf(Frame& frame) {
    const NodeId id = frame.at.node;
    if (holders_.bare_storages[id]) return left_out(frame);
    if (frame.spare) return;
    const bool again = std::find(open_.begin(), open_.end(), id) != open_.end();
    if (holds(id) && !again) {
      // Its tensors go along in it, where values do.
      refused_.push_back(id);
      out_.warnings.push_back(frame.at.key + ": a value with tensors in it, which is not taken apart");
    }
    // A whole file that is one number is no state dict.
    if (!frame.at.path.empty()) out_.leaves.push_back(std::move(frame.at));
  }

  /// Data of tensors that no tensor is made of: it must not look like a value among others.
  void left_out(const Frame& frame) {
    const auto* callee =
        graph_.kind(frame.at.node) == Kind::kObject ? graph_.global(graph_.callee(frame.at.node)) : nullptr;
    std::string why = "holds a storage that belongs to no tensor";
    if (callee != nullptr) why = "is made by " + callee->text() + ", which is not known, of a storage";
    refuse(frame, why);
  }
  bool holds(NodeId id) const { return holders_.tensors[id]; }
  bool leads_on(NodeId id) const { return holds(id) || holders_.bare_storages[id]; }

  bool has_dicts(NodeId id) {
    if (graph_.kind(id) != Kind::kList) return false;
    auto items = graph_.items(id);
    looks_ += items.size();
    return std::any_of(items.begin(), items.end(), [&](NodeId item) { return is_dict(graph_, item); });
  }

  void child(const Frame& frame, PathStep step, NodeId node) {
    const std::string text = step.text();
    Found at{frame.at.path.empty() ? text : frame.at.key + "." + text, {}, node};
    if (at.key.size() > kMaxKeyBytes) {
      at.key = at.key.substr(0, 100) + "...";
      found_ += sizeof(Frame) + 512;
      return refuse({std::move(at)}, fmt::format("has a key of more than {} bytes", kMaxKeyBytes));
    }
    found_ += sizeof(Frame) + 2 * at.key.size() + (frame.at.path.size() + 1) * sizeof(PathStep);
    at.path = frame.at.path;
    at.plain = frame.at.plain;
    at.path.push_back(std::move(step));
    frames_.push_back({std::move(at), frame.depth + 1, false, frame.spare});
  }
  void named(const Frame& frame, std::string_view name, NodeId node) {
    child(frame, {PathStep::Kind::kName, std::string(name), 0}, node);
  }

  /// The name of a dict's pair. One without a text gets its number in the dict, which no other pair has.
  std::string name_of(const Frame& frame, const DictPair& pair, size_t number) {
    if (auto text = key_text(graph_, pair.key)) return std::move(*text);
    std::string out = fmt::format("?{}", number);
    if (++nameless_ <= kMaxUnreached) {
      out_.warnings.push_back(fmt::format("{}{}: its key in the dict is an object that has no text",
                                          frame.at.key.empty() ? "" : frame.at.key + ".", out));
    }
    return out;
  }

  void pairs(const Frame& frame, const std::vector<DictPair>& of) {
    for (size_t i = 0; i < of.size() && found_ <= limit_; ++i) {
      auto number = graph_.as_int(of[i].key);
      const size_t before = frames_.size();
      if (number && graph_.kind(of[i].key) == Kind::kInt)
        child(frame, {PathStep::Kind::kNumber, "", *number}, of[i].value);
      else named(frame, name_of(frame, of[i], i), of[i].value);
      if (frames_.size() == before) continue;
      frames_.back().at.holder = of[i].holder;
      frames_.back().at.item = of[i].item;
    }
  }
  void sequence_items(const Frame& frame, std::span<const NodeId> items) {
    looks_ += items.size();
    for (size_t i = 0; i < items.size() && found_ <= limit_; ++i)
      child(frame, {PathStep::Kind::kIndex, "", static_cast<int64_t>(i)}, items[i]);
  }

  /// Only what leads to tensors: the rest of an object means nothing without its class. A state is a dict of
  /// attributes, or that and one of slots, or whatever the class makes of itself.
  void holders_of(const Frame& frame, NodeId state) {
    if (state == kNoNode || !leads_on(state)) return;
    const auto two = graph_.tuple(state);
    auto attributes = [&](NodeId part) { return graph_.is_none(part) || is_dict(graph_, part); };
    if (two.size() == 2 && attributes(two[0]) && attributes(two[1])) {
      for (NodeId part : two) attributes_of(frame, part);
    } else if (is_dict(graph_, state)) {
      attributes_of(frame, state);
    } else {
      named(frame, "state", state);
    }
  }

  void attributes_of(const Frame& frame, NodeId dict, bool module = false) {
    if (!leads_on(dict)) return;
    const auto of = dict_pairs(graph_, dict);
    looks_ += of ? of->size() : 0;
    for (size_t i = 0; of && i < of->size(); ++i) {
      const DictPair& pair = (*of)[i];
      if (!leads_on(pair.value)) continue;
      const std::string name = name_of(frame, pair, i);
      const bool group = module && (name == "_parameters" || name == "_buffers" || name == "_modules");
      if (!group) named(frame, name, pair.value);
    }
  }

  void open_object(Frame& frame) {
    const NodeId id = frame.at.node;
    frame.at.plain = false;
    if (const auto* name = graph_.global(graph_.callee(id))) classes_.insert(name->text());
    const NodeId state = graph_.state(id);
    looks_ += state == kNoNode ? 0 : 5 * graph_.items(state).size();
    if (state != kNoNode && graph_.get(state, "_parameters") != kNoNode && graph_.get(state, "_modules") != kNoNode) {
      // A module: the names of its state dict have no `_parameters` in them. Other attributes may be the same tensors.
      for (const char* group : {"_parameters", "_buffers", "_modules"}) {
        const NodeId dict = graph_.get(state, group);
        if (dict != kNoNode) attributes_of(frame, dict);
      }
      const size_t before = frames_.size();
      attributes_of(frame, state, true);
      for (size_t i = before; i < frames_.size(); ++i) {
        frames_[i].spare = true;
        spare_.push_back(std::move(frames_[i]));
      }
      frames_.resize(before);
    } else {
      holders_of(frame, state);
    }
    auto args = graph_.tuple(graph_.args(id));
    for (size_t i = 0; i < args.size(); ++i) {
      if (leads_on(args[i])) child(frame, {PathStep::Kind::kIndex, "", static_cast<int64_t>(i)}, args[i]);
    }
    const auto items = graph_.items(id);
    if (!graph_.items_are_pairs(id)) return sequence_items(frame, items);
    looks_ += items.size();
    std::vector<DictPair> of;
    for (uint32_t i = 0; i + 1 < items.size(); i += 2) of.push_back({items[i], items[i + 1], id, i / 2});
    pairs(frame, of);
  }

  // --- tensors
  // -----------------------------------------------------------------------------------------------------------
  void tensor(Frame& frame) {
    const NodeId id = frame.at.node;
    if (frame.spare && reached_[id]) return;
    if (frame.at.path.empty()) {
      frame.at.key = "tensor";
      frame.at.path = {{PathStep::Kind::kName, "tensor", 0}};
    }
    if (frame.depth >= kMaxDepth) return refuse(frame, fmt::format("is nested more than {} deep", kMaxDepth));
    reached_[id] = true;
    const bool plain = std::exchange(frame.at.plain, false);
    const pickle::RebuildCall call = pickle::rebuild_call(graph_, id);
    for (NodeId arg : call.args) looks_ += graph_.kind(arg) == Kind::kDict ? graph_.items(arg).size() : 1;
    const Meaning meaning = call.function == nullptr ? Meaning::kUnknown : call.function->meaning;
    switch (meaning) {
      case Meaning::kRebuildParameter: case Meaning::kRebuildFromCpu:
        if (call.args.size() == 4 && meaning == Meaning::kRebuildParameter) holders_of(frame, call.args[3]);
        if (call.args.empty()) return refuse(frame, "is made of nothing");
        found_ += sizeof(Frame) + 2 * frame.at.key.size();
        frame.at.plain = plain && meaning == Meaning::kRebuildParameter;
        frame.at.node = call.args[0];
        frames_.push_back({std::move(frame.at), frame.depth + 1, false, frame.spare});
        return;
      case Meaning::kRebuildSparse: return sparse(frame, call);
      case Meaning::kRebuildNested:
        return parts(frame, call.args, {"values", "sizes", "strides", "offsets"}, "a nested tensor");
      case Meaning::kRebuildWrapper: return wrapper(frame, call);
      case Meaning::kRebuildQuantised:
        // Scales and zero points of each channel are tensors of their own.
        if (call.args.size() > 4 && graph_.tuple(call.args[4]).size() == 4) {
          named(frame, "scales", graph_.tuple(call.args[4])[1]);
          named(frame, "zero_points", graph_.tuple(call.args[4])[2]);
        }
        break;
      case Meaning::kRebuildTensor: case Meaning::kRebuildTensorV2: case Meaning::kRebuildTensorV3: break;
      default: refused_.push_back(id);  // who reads the tensor names it
    }
    holders_of(frame, call.state);
    frame.at.plain = plain;
    out_.tensors.push_back(std::move(frame.at));
  }

  void parts(const Frame& frame, std::span<const NodeId> nodes, std::initializer_list<std::string_view> names,
             const std::string& what) {
    if (nodes.size() < names.size()) return refuse(frame, what + " with parts missing");
    std::string told;
    size_t i = 0;
    for (std::string_view name : names) {
      named(frame, name, nodes[i++]);
      told += (told.empty() ? "" : ", ") + std::string(name);
    }
    out_.warnings.push_back(frame.at.key + ": " + what + ", taken apart: " + told);
  }

  /// (layout, (indices, values, size[, coalesced])), or with two kinds of indices where a layout is compressed.
  void sparse(const Frame& frame, const pickle::RebuildCall& call) {
    auto data = call.args.size() == 2 ? graph_.tuple(call.args[1]) : std::span<const NodeId>();
    auto layout = call.args.size() == 2 && graph_.call(call.args[0]) == Meaning::kGetLayout
                      ? graph_.tuple(graph_.args(call.args[0]))
                      : std::span<const NodeId>();
    const std::string name = layout.empty() ? "" : std::string(graph_.as_str(layout[0]).value_or(""));
    auto size_of = [&](size_t at) {
      auto size = at < data.size() ? pickle::read_sizes(graph_, data[at]) : std::nullopt;
      return size ? fmt::format("a {} tensor of shape [{}]", name, fmt::join(*size, ", ")) : "a " + name + " tensor";
    };
    if (name == "torch.sparse_coo") return parts(frame, data, {"indices", "values"}, size_of(2));
    const bool rows = name == "torch.sparse_csr" || name == "torch.sparse_bsr";
    if (rows) return parts(frame, data, {"crow_indices", "col_indices", "values"}, size_of(3));
    if (name == "torch.sparse_csc" || name == "torch.sparse_bsc")
      return parts(frame, data, {"ccol_indices", "row_indices", "values"}, size_of(3));
    refuse(frame, "a sparse tensor of an unknown layout");
  }

  /// A subclass without a storage of its own: what it wraps are attributes (DTensor: `_local_tensor`).
  void wrapper(const Frame& frame, const pickle::RebuildCall& call) {
    const auto* type = call.type == kNoNode ? nullptr : graph_.global(call.type);
    if (type != nullptr && type->text() == "torch.distributed._shard.sharded_tensor.api.ShardedTensor")
      return sharded(frame, call.state);
    const std::string what = "a wrapped tensor" + (type == nullptr ? std::string() : " of class " + type->text());
    const size_t before = frames_.size();
    holders_of(frame, call.state);
    std::string told;
    for (size_t i = before; i < frames_.size(); ++i)
      told += (told.empty() ? "" : ", ") + frames_[i].at.path.back().text();
    if (told.empty()) refuse(frame, what + " without a tensor in it");
    else out_.warnings.push_back(frame.at.key + ": " + what + ", taken apart: " + told);
  }

  /// One rank's view of a tensor that lies on many (FSDP1): a list of Shard(tensor, metadata), the
  /// ShardedTensorMetadata of the whole, and what only its process group understands.
  void sharded(const Frame& frame, NodeId state) {
    auto fields = state == kNoNode ? std::span<const NodeId>() : graph_.tuple(state);
    auto size = fields.size() < 2 ? std::nullopt : pickle::read_sizes(graph_, attribute(graph_, fields[1], "size"));
    if (!size || graph_.kind(fields[0]) != Kind::kList) return refuse(frame, "a ShardedTensor with parts missing");
    std::string told;
    for (size_t i = 0; i < graph_.items(fields[0]).size() && looks_ <= kMaxLooks; ++i) {
      const NodeId shard = graph_.items(fields[0])[i];
      for (NodeId of : {shard, graph_.state(shard)}) looks_ += of == kNoNode ? 1 : 4 * graph_.items(of).size();
      const NodeId tensor = attribute(graph_, shard, "tensor"),
                   place = attribute(graph_, shard, "metadata");
      auto offset =
          place == kNoNode ? std::nullopt : pickle::read_sizes(graph_, attribute(graph_, place, "shard_offsets"));
      auto shape =
          place == kNoNode ? std::nullopt : pickle::read_sizes(graph_, attribute(graph_, place, "shard_sizes"));
      const std::string name = "_local_shards." + std::to_string(i);
      if (tensor == kNoNode || !offset || !shape) {
        out_.unsupported.push_back({frame.at.key + "." + name, "a shard without a tensor or a place"});
        continue;
      }
      if (*shape == *size) {
        frames_.push_back({{frame.at.key, frame.at.path, tensor}, frame.depth + 1, false});
        return;
      }
      Frame list = {frame.at, frame.depth, false};
      list.at.key += "._local_shards";
      list.at.path.push_back({PathStep::Kind::kName, "_local_shards", 0});
      child(list, {PathStep::Kind::kIndex, "", static_cast<int64_t>(i)}, tensor);
      told += fmt::format("{}{} at [{}]", told.empty() ? "" : ", ", name, fmt::join(*offset, ", "));
    }
    out_.warnings.push_back(fmt::format("{}: one rank's shards of a tensor of shape [{}], taken apart: {}",
                                        frame.at.key, fmt::join(*size, ", "),
                                        told.empty() ? "this file has none of them" : told));
  }

  const Graph& graph_;
  const Holders holders_;
  std::vector<bool> reached_;       ///< tensors
  std::vector<bool> opened_;        ///< containers
  std::vector<NodeId> refused_;
  Walk out_;
  std::vector<Frame> frames_, spare_;
  std::vector<NodeId> open_;
  std::set<std::string> classes_;
  const uint64_t limit_;            ///< of found_
  uint64_t found_ = 0, looks_ = 0;
  size_t nameless_ = 0;             ///< keys without a text
};

}  // namespace

Result<Walk> walk_state(const Graph& graph, NodeId root) { return Walker(graph).run(root); }

Result<std::vector<std::string>> names_of_other_values(const tensor::Catalog& catalog) {
  const tensor::FileRange& where = *catalog.common;
  CKPT_TRY_ASSIGN(UniqueFd fd, catalog.open_file(where.file));
  CKPT_TRY_ASSIGN(const TorchFile file, read_torch_file(zip::ByteSource(fd.get(), where.offset, where.length,
                                                                        catalog.files[where.file].path)));
  CKPT_TRY_ASSIGN(const auto walk, walk_state(file.graph));
  std::vector<std::string> out;
  for (const Found& found : walk.leaves) out.push_back(found.key);
  return out;
}

}  // namespace ckpt::formats
