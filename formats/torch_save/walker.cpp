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
constexpr size_t kMaxKeyDepth = 4;

/// A dict's key as Python's str() has it, near enough.
std::string key_text(const Graph& graph, NodeId id, size_t depth = 0) {
  if (auto text = graph.as_str(id)) return std::string(*text);
  if (auto truth = graph.as_bool(id)) return *truth ? "True" : "False";
  if (auto number = graph.as_int(id)) return std::to_string(*number);
  if (auto real = graph.as_float(id)) return fmt::format("{}", *real);
  if (graph.is_none(id)) return "None";
  if (graph.kind(id) == Kind::kGlobal) return graph.global(id)->text();
  if (graph.kind(id) != Kind::kTuple || depth >= kMaxKeyDepth) return "?";
  std::string out = "(";
  for (NodeId item : graph.items(id)) out += (out.size() == 1 ? "" : ", ") + key_text(graph, item, depth + 1);
  return out + ")";
}

}  // namespace

bool is_dict(const Graph& graph, NodeId id) {
  const Meaning call = graph.call(id);
  return graph.kind(id) == Kind::kDict || call == Meaning::kOrderedDict || call == Meaning::kDefaultDict ||
         call == Meaning::kCounter;
}

namespace {

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

/// Which nodes `begins` is true of, and which lead to one of them. One pass over the arena is not enough, for lists and
/// dicts may hold what came after them: it is repeated until nothing changes, a fixed number of times.
template <class Begins, class Ends>
std::vector<bool> spread(const Graph& graph, Begins begins, Ends ends) {
  std::vector<bool> holds(graph.node_count(), false);
  constexpr int kPasses = 64;
  bool changed = true;
  for (int pass = 0; pass < kPasses && changed; ++pass) {
    changed = false;
    for (NodeId id = 0; id < graph.node_count(); ++id) {
      if (holds[id] || ends(id)) continue;
      bool found = begins(id);
      for (NodeId item : graph.items(id)) found = found || holds[item];
      if (graph.kind(id) == Kind::kObject) {
        found = found || holds[graph.args(id)] || (graph.state(id) != kNoNode && holds[graph.state(id)]);
      }
      holds[id] = found;
      changed = changed || found;
    }
  }
  return holds;
}

}  // namespace

std::vector<bool> find_holders(const Graph& graph) {
  return spread(graph, [&](NodeId id) { return pickle::is_torch_tensor(graph, id); }, [](NodeId) { return false; });
}

namespace {

/// Storages that no tensor is made of: of a class or function that is not known, or by themselves.
std::vector<bool> holders_of_bare_storages(const Graph& graph) {
  return spread(graph, [&](NodeId id) { return graph.kind(id) == Kind::kPersistent; },
                [&](NodeId id) { return pickle::is_torch_tensor(graph, id); });
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
      : graph_(graph), holds_(find_holders(graph)), stores_(holders_of_bare_storages(graph)) {}

  Result<Walk> run(NodeId root) {
    frames_.push_back({Found{"", {}, root}, 0, false});
    while (!frames_.empty()) {
      Frame frame = std::move(frames_.back());
      frames_.pop_back();
      if (frame.leave) {
        open_.pop_back();
        continue;
      }
      // A graph that shares its parts has far more paths than nodes: an honest state dict does not.
      if (++visited_ > 4 * graph_.node_count() + 1000)
        return fail(Code::kCorrupt, "", "its object repeats itself without end");
      visit(frame);
    }
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
    size_t depth;
    bool leave;
  };

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
    const bool apart = dict || (sequence && (holds_[id] || has_dicts(id))) || (object && holds_[id]);
    if (!apart) return leaf(frame);
    if (std::find(open_.begin(), open_.end(), id) != open_.end()) return leaf(frame);
    if (frame.depth >= kMaxDepth) {
      out_.unsupported.push_back({frame.at.key, "is nested more than " + std::to_string(kMaxDepth) + " deep"});
      return;
    }
    if (dict && graph_.items(id).empty()) return leaf(frame);
    open_.push_back(id);
    frames_.push_back({Found{"", {}, id}, 0, true});
    if (dict) return pairs(frame, graph_.items(id));
    if (sequence) return sequence_items(frame, graph_.items(id));
    open_object(frame);
  }

  void leaf(Frame& frame) {
    if (stores_[frame.at.node]) return left_out(frame);
    // A whole file that is one number is no state dict.
    if (!frame.at.path.empty()) out_.leaves.push_back(std::move(frame.at));
  }

  /// Data of tensors that no tensor is made of: it must not look like a value among others.
  void left_out(const Frame& frame) {
    const auto* callee =
        graph_.kind(frame.at.node) == Kind::kObject ? graph_.global(graph_.callee(frame.at.node)) : nullptr;
    std::string why = "holds a storage that belongs to no tensor";
    if (callee != nullptr) why = "is made by " + callee->text() + ", which is not known, of a storage";
    out_.unsupported.push_back({frame.at.key.empty() ? "tensor" : frame.at.key, why});
  }
  bool leads_on(NodeId id) const { return holds_[id] || stores_[id]; }

  bool has_dicts(NodeId id) const {
    if (graph_.kind(id) != Kind::kList) return false;
    auto items = graph_.items(id);
    return std::any_of(items.begin(), items.end(), [&](NodeId item) { return is_dict(graph_, item); });
  }

  void child(const Frame& frame, PathStep step, NodeId node) {
    Found at{frame.at.path.empty() ? step.text() : frame.at.key + "." + step.text(), frame.at.path, node};
    at.plain = frame.at.plain;
    at.path.push_back(std::move(step));
    frames_.push_back({std::move(at), frame.depth + 1, false});
  }
  void named(const Frame& frame, std::string_view name, NodeId node) {
    child(frame, {PathStep::Kind::kName, std::string(name), 0}, node);
  }

  void pairs(const Frame& frame, std::span<const NodeId> items) {
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      auto number = graph_.as_int(items[i]);
      if (number && graph_.kind(items[i]) == Kind::kInt)
        child(frame, {PathStep::Kind::kNumber, "", *number}, items[i + 1]);
      else named(frame, key_text(graph_, items[i]), items[i + 1]);
      frames_.back().at.holder = frame.at.node;
      frames_.back().at.item = static_cast<uint32_t>(i / 2);
    }
  }
  void sequence_items(const Frame& frame, std::span<const NodeId> items) {
    for (size_t i = 0; i < items.size(); ++i)
      child(frame, {PathStep::Kind::kIndex, "", static_cast<int64_t>(i)}, items[i]);
  }

  /// Only what leads to tensors: the rest of an object means nothing without its class.
  void holders_of(const Frame& frame, NodeId attributes) {
    if (attributes == kNoNode || !leads_on(attributes)) return;
    if (graph_.kind(attributes) == Kind::kTuple) {  // (dict, slots)
      for (NodeId part : graph_.items(attributes)) {
        if (graph_.kind(part) == Kind::kDict) holders_of(frame, part);
      }
      return;
    }
    auto items = graph_.items(attributes);
    for (size_t i = 0; is_dict(graph_, attributes) && i + 1 < items.size(); i += 2) {
      if (leads_on(items[i + 1])) named(frame, key_text(graph_, items[i]), items[i + 1]);
    }
  }

  void open_object(Frame& frame) {
    const NodeId id = frame.at.node;
    frame.at.plain = false;
    if (const auto* name = graph_.global(graph_.callee(id))) classes_.insert(name->text());
    const NodeId state = graph_.state(id);
    if (state != kNoNode && graph_.get(state, "_parameters") != kNoNode && graph_.get(state, "_modules") != kNoNode) {
      // A module: the names of its state dict have no `_parameters` in them.
      for (const char* group : {"_parameters", "_buffers", "_modules"}) holders_of(frame, graph_.get(state, group));
    } else if (state != kNoNode) {
      holders_of(frame, state);
    }
    auto args = graph_.tuple(graph_.args(id));
    for (size_t i = 0; i < args.size(); ++i) {
      if (leads_on(args[i])) child(frame, {PathStep::Kind::kIndex, "", static_cast<int64_t>(i)}, args[i]);
    }
    if (graph_.items_are_pairs(id)) pairs(frame, graph_.items(id));
    else sequence_items(frame, graph_.items(id));
  }

  // --- tensors
  // -----------------------------------------------------------------------------------------------------------
  void tensor(Frame& frame) {
    const NodeId id = frame.at.node;
    if (frame.at.path.empty()) {
      frame.at.key = "tensor";
      frame.at.path = {{PathStep::Kind::kName, "tensor", 0}};
    }
    if (frame.depth >= kMaxDepth) {
      out_.unsupported.push_back({frame.at.key, "is nested more than " + std::to_string(kMaxDepth) + " deep"});
      return;
    }
    const bool plain = std::exchange(frame.at.plain, false);
    const pickle::RebuildCall call = pickle::rebuild_call(graph_, id);
    const Meaning meaning = call.function == nullptr ? Meaning::kUnknown : call.function->meaning;
    switch (meaning) {
      case Meaning::kRebuildParameter: case Meaning::kRebuildFromCpu:
        if (call.args.size() == 4 && meaning == Meaning::kRebuildParameter) holders_of(frame, call.args[3]);
        if (call.args.empty()) return;
        frame.at.plain = plain && meaning == Meaning::kRebuildParameter;
        frame.at.node = call.args[0];
        frames_.push_back({std::move(frame.at), frame.depth + 1, false});
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
      default: break;
    }
    holders_of(frame, call.state);
    frame.at.plain = plain;
    out_.tensors.push_back(std::move(frame.at));
  }

  void parts(const Frame& frame, std::span<const NodeId> nodes, std::initializer_list<std::string_view> names,
             const std::string& what) {
    if (nodes.size() < names.size()) {
      out_.unsupported.push_back({frame.at.key, what + " with parts missing"});
      return;
    }
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
    out_.unsupported.push_back({frame.at.key, "a sparse tensor of an unknown layout"});
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
    if (told.empty()) out_.unsupported.push_back({frame.at.key, what + " without a tensor in it"});
    else out_.warnings.push_back(frame.at.key + ": " + what + ", taken apart: " + told);
  }

  /// One rank's view of a tensor that lies on many (FSDP1): a list of Shard(tensor, metadata), the
  /// ShardedTensorMetadata of the whole, and what only its process group understands.
  void sharded(const Frame& frame, NodeId state) {
    auto fields = state == kNoNode ? std::span<const NodeId>() : graph_.tuple(state);
    auto size = fields.size() < 2 ? std::nullopt : pickle::read_sizes(graph_, attribute(graph_, fields[1], "size"));
    if (!size || graph_.kind(fields[0]) != Kind::kList) {
      out_.unsupported.push_back({frame.at.key, "a ShardedTensor with parts missing"});
      return;
    }
    std::string told;
    for (size_t i = 0; i < graph_.items(fields[0]).size(); ++i) {
      const NodeId shard = graph_.items(fields[0])[i], tensor = attribute(graph_, shard, "tensor"),
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
  std::vector<bool> holds_, stores_;
  Walk out_;
  std::vector<Frame> frames_;
  std::vector<NodeId> open_;
  std::set<std::string> classes_;
  uint64_t visited_ = 0;
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
