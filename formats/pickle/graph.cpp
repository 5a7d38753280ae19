#include "formats/pickle/pickle.h"

namespace ckpt::pickle {

std::optional<bool> Graph::as_bool(NodeId id) const {
  if (kind(id) != Kind::kBool) return std::nullopt;
  return nodes_[id].flag;
}

std::optional<int64_t> Graph::as_int(NodeId id) const {
  if (kind(id) == Kind::kBool) return nodes_[id].flag ? 1 : 0;
  if (kind(id) != Kind::kInt) return std::nullopt;
  return nodes_[id].integer;
}

std::optional<double> Graph::as_float(NodeId id) const {
  if (kind(id) != Kind::kFloat) return std::nullopt;
  return nodes_[id].real;
}

std::optional<std::string_view> Graph::as_str(NodeId id) const {
  if (kind(id) != Kind::kStr) return std::nullopt;
  return as_text(data_.subspan(nodes_[id].offset, nodes_[id].size));
}

std::optional<ByteSpan> Graph::as_bytes(NodeId id) const {
  if (kind(id) != Kind::kBytes) return std::nullopt;
  return data_.subspan(nodes_[id].offset, nodes_[id].size);
}

std::optional<ByteSpan> Graph::as_big_int(NodeId id) const {
  if (kind(id) != Kind::kBigInt) return std::nullopt;
  return data_.subspan(nodes_[id].offset, nodes_[id].size);
}

std::span<const NodeId> Graph::items(NodeId id) const {
  const Node& node = nodes_[id];
  switch (node.kind) {
    case Kind::kTuple: case Kind::kList: case Kind::kDict: case Kind::kSet:
      return std::span(items_).subspan(node.range.first, node.size);
    case Kind::kObject: {
      if (node.object.extra == kNoNode) return {};
      const Extra& extra = extras_[node.object.extra];
      return std::span(items_).subspan(extra.first, extra.count);
    }
    default: return {};
  }
}

const GlobalName* Graph::global(NodeId id) const {
  return kind(id) == Kind::kGlobal ? &globals_[nodes_[id].size] : nullptr;
}

NodeId Graph::callee(NodeId id) const { return kind(id) == Kind::kObject ? nodes_[id].size : kNoNode; }

NodeId Graph::args(NodeId id) const {
  return kind(id) == Kind::kObject || kind(id) == Kind::kPersistent ? nodes_[id].object.args : kNoNode;
}

NodeId Graph::state(NodeId id) const {
  if (kind(id) != Kind::kObject || nodes_[id].object.extra == kNoNode) return kNoNode;
  return extras_[nodes_[id].object.extra].state;
}

Meaning Graph::global_meaning(NodeId id) const {
  const GlobalName* name = id == kNoNode ? nullptr : global(id);
  return name == nullptr ? Meaning::kUnknown : name->meaning;
}

Meaning Graph::call(NodeId id) const { return global_meaning(callee(id)); }

NodeId Graph::get(NodeId dict, std::string_view key) const {
  if (dict == kNoNode || (kind(dict) != Kind::kDict && kind(dict) != Kind::kObject)) return kNoNode;
  auto search = [&](std::span<const NodeId> pairs) {
    for (size_t i = pairs.size() / 2; i-- > 0;) {
      if (as_str(pairs[2 * i]) == key) return pairs[2 * i + 1];
    }
    return kNoNode;
  };
  NodeId found = search(items(dict));
  NodeId attributes = state(dict);
  if (found == kNoNode && attributes != kNoNode && kind(attributes) == Kind::kDict) found = search(items(attributes));
  return found;
}

Result<void> refuse_unknown_globals(const Graph& graph) {
  Error error(Code::kAnswerNo, "", "the pickle names what a checkpoint has no use for");
  for (const GlobalName& name : graph.globals()) {
    if (name.meaning == Meaning::kUnknown) error.causes.push_back(name.text());
  }
  if (error.causes.empty()) return {};
  return error;
}

}  // namespace ckpt::pickle
