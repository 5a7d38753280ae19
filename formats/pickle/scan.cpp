#include "formats/pickle/scan.h"

#include <algorithm>
#include <unordered_set>

namespace ckpt::pickle {

namespace {

constexpr int kMaxNesting = 2;
constexpr size_t kMaxNested = 10'000;  ///< pickles within a pickle

/// In bytes that Python 2's pickle wrote as text: code points 0 to 255, each a byte.
std::vector<std::byte> from_latin1(std::string_view text) {
  std::vector<std::byte> out;
  for (size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0xc0 && i + 1 < text.size())
      c = static_cast<unsigned char>(c << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f));
    out.push_back(static_cast<std::byte>(c));
  }
  return out;
}

class Scanner {
 public:
  Scanner(Scan& out, const Limits& limits) : out_(out), limits_(limits) {}

  /// `shift`: what to add to offsets in `pickle`; `fixed`: every import lies at `shift` (the bytes were made from
  /// text).
  void run(ByteSpan pickle, uint64_t shift, bool fixed, int depth) {
    const LooseGraph loose = parse_loosely(pickle, limits_);
    const Graph& graph = loose.graph;
    auto place = [&](uint64_t offset) { return fixed ? shift : shift + offset; };
    if (depth == 0) {
      out_.consumed = graph.consumed();
      out_.stopped = loose.stopped;
      out_.stopped_at = graph.consumed();
    }
    const bool getattr_abused = abuses_getattr(graph);
    for (const GlobalName& global : graph.globals()) {
      Classification classification = classify_global(global.module, global.name);
      if (global.meaning == Meaning::kGetattr && getattr_abused)
        classification = {Verdict::kDangerous, "reaches into any object"};
      out_.imports.push_back({global.text(), place(global.offset), classification, depth > 0});
    }
    for (const LooseGraph::Change& change : loose.changed) {
      out_.imports.push_back({graph.global(change.global)->text(), place(change.offset),
                              {Verdict::kDangerous, "its attributes or items are overwritten"}, depth > 0});
    }
    if (depth < kMaxNesting) look_inside(graph, pickle, shift, fixed, depth);
  }

 private:
  /// getattr is only right to name a member of an enum that checkpoints have, or the class that ShardedTensor has
  /// inside.
  static bool abuses_getattr(const Graph& graph) {
    bool right = false;
    for (NodeId id = 0; id < graph.node_count(); ++id) {
      if (graph.call(id) != Meaning::kGetattr) continue;
      auto args = graph.tuple(graph.args(id));
      const GlobalName* of = args.size() == 2 ? graph.global(args[0]) : nullptr;
      auto name = args.size() == 2 ? graph.as_str(args[1]) : std::nullopt;
      if (of == nullptr || !name || name->substr(0, 1) == "_") return true;
      const bool inner =
          classify_global(of->module, std::string(of->name) + "." + std::string(*name)).verdict == Verdict::kSafe;
      if (of->meaning != Meaning::kDcpMemoryFormat && of->meaning != Meaning::kOpaque && !inner) return true;
      right = true;
    }
    return !right;
  }

  void look_inside(const Graph& graph, ByteSpan pickle, uint64_t shift, bool fixed, int depth) {
    for (NodeId id = 0; id < graph.node_count() && nested_ < kMaxNested; ++id) {
      if (auto bytes = graph.as_bytes(id); bytes && looks_like_pickle(*bytes)) {
        const auto at = static_cast<uint64_t>(bytes->data() - pickle.data());
        nest(*bytes, fixed ? shift : shift + at, fixed, depth);
      } else if (graph.call(id) == Meaning::kCodecsEncode) {
        auto args = graph.tuple(graph.args(id));
        auto text = args.empty() ? std::nullopt : graph.as_str(args[0]);
        // 0x80 as UTF-8 is C2 80.
        if (!text || text->substr(0, 2) != "\xc2\x80" || text->size() > limits_.string_bytes) continue;
        const std::vector<std::byte> bytes = from_latin1(*text);
        const bool inside =
            text->data() >= as_text(pickle).data() && text->data() < as_text(pickle).data() + pickle.size();
        const uint64_t at = inside ? static_cast<uint64_t>(text->data() - as_text(pickle).data()) : 0;
        if (looks_like_pickle(bytes)) nest(bytes, fixed ? shift : shift + at, true, depth);
      }
    }
  }
  void nest(ByteSpan bytes, uint64_t shift, bool fixed, int depth) {
    ++nested_;
    run(bytes, shift, fixed, depth + 1);
  }

  Scan& out_;
  const Limits& limits_;
  size_t nested_ = 0;
};

}  // namespace

bool looks_like_pickle(ByteSpan bytes) {
  return bytes.size() >= 3 && bytes[0] == std::byte{0x80} && bytes[1] >= std::byte{2} && bytes[1] <= std::byte{5};
}

Scan scan(ByteSpan pickle, const Limits& limits) {
  Scan out;
  Scanner(out, limits).run(pickle, 0, false, 0);
  std::stable_sort(out.imports.begin(), out.imports.end(),
                   [](const Import& a, const Import& b) { return a.offset < b.offset; });
  return out;
}

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSafe: return "safe";
    case Verdict::kUnknown: return "unknown";
    case Verdict::kDangerous: return "dangerous";
  }
  return "?";
}

}  // namespace ckpt::pickle
