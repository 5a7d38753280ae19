#include "formats/pickle/render.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "formats/pickle/torch_tensor.h"
#include "lib/base/json_text.h"

namespace ckpt::pickle {

namespace {

/// Walks without recursion: a stack of frames, each with what is left to print of one container.
class Renderer {
 public:
  Renderer(const Graph& graph, const RenderOptions& options) : graph_(graph), options_(options) {}

  std::string run(NodeId root) {
    value(root);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      if (frame.at == frame.entries.size()) {
        const char close = frame.close;
        const bool empty = frame.entries.empty();
        frames_.pop_back();
        if (!empty) new_line();
        out_ += close;
        continue;
      }
      Entry entry = std::move(frame.entries[frame.at++]);
      if (frame.at > 1) out_ += ',';
      new_line();
      if (!entry.label.empty()) out_ += entry.label + (options_.indent ? ": " : ":");
      print(entry);
    }
    return std::move(out_);
  }

 private:
  enum class What : uint8_t { kValue, kText, kItems, kPairs, kPair };
  struct Entry {
    std::string label;     ///< quoted; empty in arrays
    What what = What::kValue;
    NodeId id = kNoNode;   ///< kItems, kPairs: the container whose items are printed as an array
    NodeId second = kNoNode;  ///< kPair: [id, second]
    std::string text;      ///< kText: JSON
  };
  struct Frame {
    NodeId node;           ///< to see cycles; kNoNode for made-up ones
    char close;
    std::vector<Entry> entries;
    size_t at = 0;
  };

  static Entry value_entry(std::string label, NodeId id) { return {std::move(label), What::kValue, id, kNoNode, ""}; }

  void print(const Entry& entry) {
    switch (entry.what) {
      case What::kValue: return value(entry.id);
      case What::kText: out_ += entry.text; return;
      case What::kItems: return list(kNoNode, entry.id);
      case What::kPairs: {
        auto pairs = graph_.items(entry.id);
        open(kNoNode, '[', ']');
        for (size_t i = 0; i < room(pairs.size() / 2); ++i) {
          frames_.back().entries.push_back({"", What::kPair, pairs[2 * i], pairs[2 * i + 1], ""});
        }
        return;
      }
      case What::kPair:
        open(kNoNode, '[', ']');
        frames_.back().entries = {value_entry("", entry.id), value_entry("", entry.second)};
    }
  }

  void new_line() {
    if (options_.indent) out_ += '\n' + std::string(2 * frames_.size(), ' ');
  }
  void open(NodeId node, char begin, char end) {
    out_ += begin;
    frames_.push_back({node, end, {}, 0});
  }
  void cut(const char* why) { out_ += std::string("{\"__cut__\": \"") + why + "\"}"; }
  std::string quoted(std::string_view text) const {
    if (text.size() <= options_.max_string) return json_string(text);
    return json_string(std::string(text.substr(0, options_.max_string)) + "... (" + std::to_string(text.size()) +
                       " bytes)");
  }

  void value(NodeId id) {
    if (++printed_ > options_.max_nodes || out_.size() > options_.max_nodes * 64) return cut("too many nodes");
    switch (graph_.kind(id)) {
      case Kind::kNone: out_ += "null"; return;
      case Kind::kBool: out_ += *graph_.as_bool(id) ? "true" : "false"; return;
      case Kind::kInt: out_ += std::to_string(*graph_.as_int(id)); return;
      case Kind::kBigInt: bytes("__int__", *graph_.as_big_int(id)); return;
      case Kind::kFloat: number(*graph_.as_float(id)); return;
      case Kind::kStr: out_ += quoted(*graph_.as_str(id)); return;
      case Kind::kBytes: bytes("__bytes__", *graph_.as_bytes(id)); return;
      case Kind::kGlobal: out_ += quoted(graph_.global(id)->text()); return;
      default: container(id);
    }
  }

  void number(double value) {
    if (std::isnan(value)) out_ += "\"NaN\"";
    else if (std::isinf(value)) out_ += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    else {
      char text[32];
      std::snprintf(text, sizeof text, "%.17g", value);
      double back = 0;
      char shorter[32];
      std::snprintf(shorter, sizeof shorter, "%.15g", value);
      std::sscanf(shorter, "%lf", &back);
      std::string chosen = back == value ? shorter : text;
      if (chosen.find_first_of(".en") == std::string::npos) chosen += ".0";
      out_ += chosen;
    }
  }

  void bytes(const char* label, ByteSpan data) {
    constexpr size_t kShown = 64;
    out_ += std::string("{\"") + label + "\": " + std::to_string(data.size()) + ", \"hex\": \"";
    for (std::byte b : data.first(std::min(kShown, data.size()))) {
      char text[4];
      std::snprintf(text, sizeof text, "%02x", static_cast<unsigned>(b));
      out_ += text;
    }
    out_ += data.size() > kShown ? "...\"}" : "\"}";
  }

  void container(NodeId id) {
    if (frames_.size() >= options_.max_depth) return cut("too deep");
    for (const Frame& frame : frames_) {
      if (frame.node == id) {
        out_ += "{\"__cycle__\": true}";
        return;
      }
    }
    switch (graph_.kind(id)) {
      case Kind::kTuple: case Kind::kList: return list(id, id);
      case Kind::kDict: return dict(id, graph_.items(id));
      case Kind::kSet:
        open(id, '{', '}');
        frames_.back().entries.push_back({"\"__set__\"", What::kItems, id, kNoNode, ""});
        return;
      case Kind::kPersistent:
        open(id, '{', '}');
        frames_.back().entries.push_back(value_entry("\"__persistent__\"", graph_.args(id)));
        return;
      default: return object(id);
    }
  }

  /// No more entries than the budget can still print: the rest would be cut one by one.
  size_t room(size_t n) const {
    return std::min<size_t>(n, options_.max_nodes - std::min(printed_, options_.max_nodes) + 1);
  }

  void list(NodeId node, NodeId source) {
    auto items = graph_.items(source);
    open(node, '[', ']');
    for (NodeId item : items.first(room(items.size()))) frames_.back().entries.push_back(value_entry("", item));
  }

  void dict(NodeId id, std::span<const NodeId> pairs) {
    bool text = true;
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) text = text && graph_.kind(pairs[i]) == Kind::kStr;
    open(id, '{', '}');
    if (!text) {
      frames_.back().entries.push_back({"\"__dict__\"", What::kPairs, id, kNoNode, ""});
      return;
    }
    for (size_t i = 0; i < room(pairs.size() / 2); ++i) {
      frames_.back().entries.push_back(value_entry(quoted(*graph_.as_str(pairs[2 * i])), pairs[2 * i + 1]));
    }
  }

  void object(NodeId id) {
    auto args = graph_.tuple(graph_.args(id));
    switch (graph_.call(id)) {
      case Meaning::kTorchSize:
        if (args.size() == 1 && graph_.kind(args[0]) == Kind::kTuple) return list(id, args[0]);
        break;
      case Meaning::kOrderedDict: case Meaning::kDictType:
        if (args.empty()) return dict(id, graph_.items(id));
        break;
      case Meaning::kCodecsEncode:
        if (const auto data = latin1_bytes(graph_, id)) return bytes("__bytes__", *data);
        break;
      case Meaning::kDefaultDict: return dict(id, graph_.items(id));
      default: break;
    }
    if (is_torch_tensor(graph_, id)) {
      if (auto t = read_torch_tensor(graph_, id)) return tensor(*t);
    }
    opaque(id);
  }

  void tensor(const TorchTensor& t) {
    out_ += "{\"__tensor__\": " + json_string(t.torch_dtype.name) + ", \"shape\": [";
    for (size_t i = 0; i < t.logical_shape.size(); ++i)
      out_ += (i == 0 ? "" : ", ") + std::to_string(t.logical_shape[i]);
    out_ += "]}";
  }

  void opaque(NodeId id) {
    const GlobalName* name = graph_.global(graph_.callee(id));
    open(id, '{', '}');
    auto& entries = frames_.back().entries;
    if (name != nullptr) entries.push_back({"\"__class__\"", What::kText, kNoNode, kNoNode, quoted(name->text())});
    else entries.push_back(value_entry("\"__class__\"", graph_.callee(id)));
    if (!graph_.tuple(graph_.args(id)).empty()) entries.push_back(value_entry("\"args\"", graph_.args(id)));
    if (graph_.state(id) != kNoNode) entries.push_back(value_entry("\"state\"", graph_.state(id)));
    if (!graph_.items(id).empty()) entries.push_back({"\"items\"", What::kItems, id, kNoNode, ""});
  }

  const Graph& graph_;
  const RenderOptions& options_;
  std::string out_;
  std::vector<Frame> frames_;
  uint64_t printed_ = 0;
};

}  // namespace

std::optional<std::vector<std::byte>> latin1_bytes(const Graph& graph, NodeId id) {
  if (graph.call(id) != Meaning::kCodecsEncode) return std::nullopt;
  const auto args = graph.tuple(graph.args(id));
  if (args.size() != 2 || graph.as_str(args[1]) != "latin1") return std::nullopt;
  const auto text = graph.as_str(args[0]);
  if (!text) return std::nullopt;
  std::vector<std::byte> out;
  for (size_t i = 0; i < text->size(); ++i) {
    const auto c = static_cast<unsigned char>((*text)[i]);
    if (c < 0x80) {
      out.push_back(std::byte{c});
    } else if ((c == 0xc2 || c == 0xc3) && i + 1 < text->size()) {
      out.push_back(static_cast<std::byte>(((c & 3) << 6) | (static_cast<unsigned char>((*text)[++i]) & 0x3f)));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::string to_json(const Graph& graph, NodeId id, const RenderOptions& options) {
  return Renderer(graph, options).run(id);
}

}  // namespace ckpt::pickle
