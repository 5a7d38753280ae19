#include "formats/torch_save/walker.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

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

bool is_dict(const Graph& graph, NodeId id) {
  const Meaning call = graph.call(id);
  return graph.kind(id) == Kind::kDict || call == Meaning::kOrderedDict || call == Meaning::kDefaultDict || call == Meaning::kCounter;
}

bool is_sequence(const Graph& graph, NodeId id) {
  const Kind kind = graph.kind(id);
  return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kSet;
}

/// Objects that hold no tensors, whatever they are made of.
bool is_plain_value(const Graph& graph, NodeId id) {
  switch (graph.call(id)) {
    case Meaning::kTorchSize: case Meaning::kTorchDevice: case Meaning::kTorchDType: case Meaning::kGetLayout: case Meaning::kPath:
    case Meaning::kComplex: case Meaning::kRange: case Meaning::kSlice: case Meaning::kBytesType: case Meaning::kByteArray:
    case Meaning::kCodecsEncode: case Meaning::kBytesIo: case Meaning::kNumpyReconstruct: case Meaning::kNumpyArray:
    case Meaning::kNumpyDType: case Meaning::kNumpyScalar: case Meaning::kGetattr:
      return true;
    default: return false;
  }
}

/// Which nodes lead to a tensor. One pass over the arena is not enough, for lists and dicts may hold what came after them:
/// it is repeated until nothing changes, a fixed number of times.
std::vector<bool> find_holders(const Graph& graph) {
  std::vector<bool> holds(graph.node_count(), false);
  constexpr int kPasses = 64;
  bool changed = true;
  for (int pass = 0; pass < kPasses && changed; ++pass) {
    changed = false;
    for (NodeId id = 0; id < graph.node_count(); ++id) {
      if (holds[id]) continue;
      bool found = pickle::is_torch_tensor(graph, id);
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

class Walker {
 public:
  explicit Walker(const Graph& graph) : graph_(graph), holds_(find_holders(graph)) {}

  Result<Walk> run() {
    frames_.push_back({{"", {}, graph_.root()}, 0, false});
    while (!frames_.empty()) {
      Frame frame = std::move(frames_.back());
      frames_.pop_back();
      if (frame.leave) {
        open_.pop_back();
        continue;
      }
      // A graph that shares its parts has far more paths than nodes: an honest state dict does not.
      if (++visited_ > 4 * graph_.node_count() + 1000) return fail(Code::kAnswerNo, "", "its object repeats itself without end");
      visit(frame);
    }
    for (const std::string& name : classes_) {
      out_.warnings.push_back("tensors inside objects of class " + name + " are taken out of them; the objects themselves are not kept");
    }
    return std::move(out_);
  }

 private:
  struct Frame {
    Found at;
    size_t depth;
    bool leave;
  };

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
      out_.unsupported.push_back(frame.at.key + ": is nested more than " + std::to_string(kMaxDepth) + " deep");
      return;
    }
    if (dict && graph_.items(id).empty()) return leaf(frame);
    open_.push_back(id);
    frames_.push_back({{"", {}, id}, 0, true});
    if (dict) return pairs(frame, graph_.items(id));
    if (sequence) return sequence_items(frame, graph_.items(id));
    open_object(frame);
  }

  void leaf(Frame& frame) {
    // A whole file that is one number is no state dict.
    if (!frame.at.key.empty()) out_.leaves.push_back(std::move(frame.at));
  }

  bool has_dicts(NodeId id) const {
    if (graph_.kind(id) != Kind::kList) return false;
    auto items = graph_.items(id);
    return std::any_of(items.begin(), items.end(), [&](NodeId item) { return is_dict(graph_, item); });
  }

  void child(const Frame& frame, PathStep step, NodeId node) {
    Found at{frame.at.key.empty() ? step.text() : frame.at.key + "." + step.text(), frame.at.path, node};
    at.path.push_back(std::move(step));
    frames_.push_back({std::move(at), frame.depth + 1, false});
  }
  void named(const Frame& frame, std::string_view name, NodeId node) { child(frame, {PathStep::Kind::kName, std::string(name), 0}, node); }

  void pairs(const Frame& frame, std::span<const NodeId> items) {
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      auto number = graph_.as_int(items[i]);
      if (number && graph_.kind(items[i]) == Kind::kInt) child(frame, {PathStep::Kind::kNumber, "", *number}, items[i + 1]);
      else named(frame, key_text(graph_, items[i]), items[i + 1]);
    }
  }
  void sequence_items(const Frame& frame, std::span<const NodeId> items) {
    for (size_t i = 0; i < items.size(); ++i) child(frame, {PathStep::Kind::kIndex, "", static_cast<int64_t>(i)}, items[i]);
  }

  /// Only what leads to tensors: the rest of an object means nothing without its class.
  void holders_of(const Frame& frame, NodeId attributes) {
    if (attributes == kNoNode || !holds_[attributes]) return;
    if (graph_.kind(attributes) == Kind::kTuple) {  // (dict, slots)
      for (NodeId part : graph_.items(attributes)) {
        if (graph_.kind(part) == Kind::kDict) holders_of(frame, part);
      }
      return;
    }
    auto items = graph_.items(attributes);
    for (size_t i = 0; is_dict(graph_, attributes) && i + 1 < items.size(); i += 2) {
      if (holds_[items[i + 1]]) named(frame, key_text(graph_, items[i]), items[i + 1]);
    }
  }

  void open_object(const Frame& frame) {
    const NodeId id = frame.at.node;
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
      if (holds_[args[i]]) child(frame, {PathStep::Kind::kIndex, "", static_cast<int64_t>(i)}, args[i]);
    }
    if (graph_.items_are_pairs(id)) pairs(frame, graph_.items(id));
    else sequence_items(frame, graph_.items(id));
  }

  // --- tensors -----------------------------------------------------------------------------------------------------------
  void tensor(Frame& frame) {
    const NodeId id = frame.at.node;
    if (frame.at.key.empty()) {
      frame.at.key = "tensor";
      frame.at.path = {{PathStep::Kind::kName, "tensor", 0}};
    }
    if (frame.depth >= kMaxDepth) {
      out_.unsupported.push_back(frame.at.key + ": is nested more than " + std::to_string(kMaxDepth) + " deep");
      return;
    }
    const pickle::RebuildCall call = pickle::rebuild_call(graph_, id);
    const Meaning meaning = call.function == nullptr ? Meaning::kUnknown : call.function->meaning;
    switch (meaning) {
      case Meaning::kRebuildParameter: case Meaning::kRebuildFromCpu:
        if (call.args.size() == 4 && meaning == Meaning::kRebuildParameter) holders_of(frame, call.args[3]);
        if (!call.args.empty()) frames_.push_back({{frame.at.key, frame.at.path, call.args[0]}, frame.depth + 1, false});
        return;
      case Meaning::kRebuildSparse: return sparse(frame, call);
      case Meaning::kRebuildNested: return parts(frame, call.args, {"values", "sizes", "strides", "offsets"}, "a nested tensor");
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
    out_.tensors.push_back(std::move(frame.at));
  }

  void parts(const Frame& frame, std::span<const NodeId> nodes, std::initializer_list<std::string_view> names, const std::string& what) {
    if (nodes.size() < names.size()) {
      out_.unsupported.push_back(frame.at.key + ": " + what + " with parts missing");
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
    auto layout = call.args.size() == 2 && graph_.call(call.args[0]) == Meaning::kGetLayout ? graph_.tuple(graph_.args(call.args[0]))
                                                                                              : std::span<const NodeId>();
    const std::string name = layout.empty() ? "" : std::string(graph_.as_str(layout[0]).value_or(""));
    auto size_of = [&](size_t at) {
      auto size = at < data.size() ? pickle::read_sizes(graph_, data[at]) : std::nullopt;
      return size ? fmt::format("a {} tensor of shape [{}]", name, fmt::join(*size, ", ")) : "a " + name + " tensor";
    };
    if (name == "torch.sparse_coo") return parts(frame, data, {"indices", "values"}, size_of(2));
    const bool rows = name == "torch.sparse_csr" || name == "torch.sparse_bsr";
    if (rows) return parts(frame, data, {"crow_indices", "col_indices", "values"}, size_of(3));
    if (name == "torch.sparse_csc" || name == "torch.sparse_bsc") return parts(frame, data, {"ccol_indices", "row_indices", "values"}, size_of(3));
    out_.unsupported.push_back(frame.at.key + ": a sparse tensor of an unknown layout");
  }

  /// A subclass without a storage of its own: what it wraps are attributes (DTensor: `_local_tensor`).
  void wrapper(const Frame& frame, const pickle::RebuildCall& call) {
    const auto* type = call.type == kNoNode ? nullptr : graph_.global(call.type);
    const std::string what = "a wrapped tensor" + (type == nullptr ? std::string() : " of class " + type->text());
    const size_t before = frames_.size();
    holders_of(frame, call.state);
    std::string told;
    for (size_t i = before; i < frames_.size(); ++i) told += (told.empty() ? "" : ", ") + frames_[i].at.path.back().text();
    if (told.empty()) out_.unsupported.push_back(frame.at.key + ": " + what + " without a tensor in it");
    else out_.warnings.push_back(frame.at.key + ": " + what + ", taken apart: " + told);
  }

  const Graph& graph_;
  std::vector<bool> holds_;
  Walk out_;
  std::vector<Frame> frames_;
  std::vector<NodeId> open_;
  std::set<std::string> classes_;
  uint64_t visited_ = 0;
};

}  // namespace

Result<Walk> walk_state(const Graph& graph) { return Walker(graph).run(); }

Result<std::vector<std::string>> names_of_other_values(const tensor::Catalog& catalog) {
  const tensor::FileRange& where = *catalog.common;
  CKPT_TRY_ASSIGN(UniqueFd fd, catalog.open_file(where.file));
  CKPT_TRY_ASSIGN(const TorchFile file, read_torch_file(zip::ByteSource(fd.get(), where.offset, where.length, catalog.files[where.file].path)));
  CKPT_TRY_ASSIGN(const auto walk, walk_state(file.graph));
  std::vector<std::string> out;
  for (const Found& found : walk.leaves) out.push_back(found.key);
  return out;
}

}  // namespace ckpt::formats
