#include "formats/torch_save/dict.h"

#include <fmt/format.h>

#include "formats/pickle/render.h"

namespace ckpt::formats {

using pickle::Graph;
using pickle::Kind;
using pickle::kNoNode;
using pickle::Meaning;
using pickle::NodeId;

namespace {

constexpr size_t kMaxKeyDepth = 4;

/// As Python's repr() has them, always in single quotes.
void append_bytes(ByteSpan data, std::string& out) {
  out += "b'";
  for (size_t i = 0; i < data.size() && out.size() <= kMaxKeyBytes; ++i) {
    const auto c = static_cast<unsigned char>(data[i]);
    if (c == '\'' || c == '\\') out += {'\\', static_cast<char>(c)};
    else if (c >= 0x20 && c < 0x7f) out += static_cast<char>(c);
    else out += fmt::format("\\x{:02x}", c);
  }
  out += "'";
}

/// False: it has no text. Ends early once `out` is too long for a key, whatever the graph stands for.
bool append_key(const Graph& graph, NodeId id, size_t depth, std::string& out) {
  if (out.size() > kMaxKeyBytes) return true;
  if (auto text = graph.as_str(id)) out += text->substr(0, kMaxKeyBytes + 1);
  else if (auto truth = graph.as_bool(id)) out += *truth ? "True" : "False";
  else if (auto number = graph.as_int(id)) out += std::to_string(*number);
  else if (auto real = graph.as_float(id)) out += fmt::format("{}", *real);
  else if (auto bytes = graph.as_bytes(id)) append_bytes(*bytes, out);
  else if (graph.is_none(id)) out += "None";
  else if (graph.kind(id) == Kind::kGlobal) out += graph.global(id)->text();
  else if (depth >= kMaxKeyDepth) return false;
  else if (graph.kind(id) == Kind::kTuple) {
    out += "(";
    bool first = true;
    for (NodeId item : graph.items(id)) {
      if (out.size() > kMaxKeyBytes) return true;
      if (!std::exchange(first, false)) out += ", ";
      if (!append_key(graph, item, depth + 1, out)) return false;
    }
    out += ")";
  } else if (auto encoded = pickle::latin1_bytes(graph, id)) append_bytes(*encoded, out);
  else {  // a member of an enum: its class, called with its value; with Python 3.11 an attribute of it
    const auto args = graph.kind(id) == Kind::kObject ? graph.tuple(graph.args(id)) : std::span<const NodeId>();
    if (graph.call(id) == Meaning::kGetattr && args.size() == 2) {
      if (!append_key(graph, args[0], depth + 1, out)) return false;
      out += ".";
      return append_key(graph, args[1], depth + 1, out);
    }
    const bool call = graph.kind(id) == Kind::kObject && graph.global(graph.callee(id)) != nullptr;
    if (!call || graph.state(id) != kNoNode || !graph.items(id).empty()) return false;
    out += graph.global(graph.callee(id))->text();
    return append_key(graph, graph.args(id), depth + 1, out);
  }
  return true;
}

/// False: not pairs.
bool append_pairs(const Graph& graph, NodeId from, std::vector<DictPair>& out) {
  const auto items = graph.items(from);
  if (graph.kind(from) == Kind::kDict || graph.items_are_pairs(from)) {
    for (uint32_t i = 0; i + 1 < items.size(); i += 2) out.push_back({items[i], items[i + 1], from, i / 2});
    return true;
  }
  if (graph.kind(from) != Kind::kList && graph.kind(from) != Kind::kTuple) return false;
  for (NodeId pair : items) {
    const auto two = graph.items(pair);
    if ((graph.kind(pair) != Kind::kList && graph.kind(pair) != Kind::kTuple) || two.size() != 2) return false;
    out.push_back({two[0], two[1], kNoNode, 0});
  }
  return true;
}

}  // namespace

bool is_dict(const Graph& graph, NodeId id) {
  const Meaning call = graph.call(id);
  return graph.kind(id) == Kind::kDict || call == Meaning::kOrderedDict || call == Meaning::kDefaultDict ||
         call == Meaning::kCounter || call == Meaning::kDictType;
}

std::optional<std::vector<DictPair>> dict_pairs(const Graph& graph, NodeId id) {
  std::vector<DictPair> out;
  if (graph.kind(id) == Kind::kObject) {
    auto args = graph.tuple(graph.args(id));
    if (!args.empty() && graph.call(id) == Meaning::kDefaultDict) args = args.subspan(1);  // the factory
    if (args.size() > 1 || (args.size() == 1 && !append_pairs(graph, args[0], out))) return std::nullopt;
    if (!graph.items(id).empty() && !graph.items_are_pairs(id)) return std::nullopt;
  }
  if (!graph.items(id).empty()) append_pairs(graph, id, out);
  return out;
}

std::optional<std::string> key_text(const Graph& graph, NodeId id) {
  std::string out;
  if (!append_key(graph, id, 0, out)) return std::nullopt;
  return out;
}

}  // namespace ckpt::formats
