#include "formats/pickle/emit.h"

#include <algorithm>

#include "lib/base/json_text.h"

namespace ckpt::pickle {

namespace {

constexpr size_t kMaxDepth = 500;
constexpr size_t kMaxLong = 255;

/// Bytes as the text of the same code points, in UTF-8: what `_codecs.encode(text, "latin1")` undoes. Protocol 2 has no
/// bytes.
std::string latin1(ByteSpan data) {
  std::string out;
  out.reserve(data.size() * 3 / 2);
  for (std::byte b : data) {
    const auto c = static_cast<unsigned char>(b);
    if (c >= 0x80) out += static_cast<char>(0xc0 | (c >> 6));
    out += static_cast<char>(c < 0x80 ? c : 0x80 | (c & 0x3f));
  }
  return out;
}

/// What Python takes as the text of a pickle: UTF-8, in which half a surrogate pair may stand alone.
bool is_text(std::string_view text) {
  for (size_t at = 0;; at += 2) {
    const size_t from = at;
    for (at = text.find('\xed', at); at != std::string_view::npos; at = text.find('\xed', at + 1)) {
      if (at + 2 < text.size() && (text[at + 1] & 0xe0) == 0xa0 && (text[at + 2] & 0xc0) == 0x80) break;
    }
    if (!is_valid_utf8(text.substr(from, at == std::string_view::npos ? at : at - from))) return false;
    if (at == std::string_view::npos) return true;
    ++at;
  }
}

}  // namespace

Emitter::Emitter(Writer& out, const Graph& graph, Persistent persistent, Changes* changes)
    : out_(out), graph_(graph), persistent_(std::move(persistent)), changes_(changes), uses_(graph.node_count(), 0) {
  auto use = [&](NodeId id) {
    if (id != kNoNode && uses_[id] < 2) ++uses_[id];
  };
  for (NodeId id = 0; id < graph.node_count(); ++id) {
    for (NodeId item : graph.items(id)) use(item);
    use(graph.args(id));
    use(graph.state(id));
    use(graph.callee(id));
  }
}

void Emitter::remember(NodeId id) {
  if (uses_[id] > 1) memo_[id] = out_.put();
}

Result<void> Emitter::emit(NodeId id) {
  auto known = memo_.find(id);
  if (known != memo_.end()) {
    out_.get(known->second);
    return {};
  }
  if (depth_ == 0 && uses_[id] < 2)
    ++uses_[id];  // the caller's own, so that a list that only holds itself is known again
  if (changes_ != nullptr) {
    CKPT_TRY_ASSIGN(const bool done, changes_->replace(id));
    if (done) remember(id);
    if (done) return {};
  }
  if (depth_ >= kMaxDepth)
    return fail(Code::kUnsupported, "", "is nested more than " + std::to_string(kMaxDepth) + " deep");
  if (!open_.insert(id).second) return fail(Code::kUnsupported, "", "holds itself");
  ++depth_;
  auto done = emit_new(id);
  --depth_;
  open_.erase(id);
  return done;
}

Result<void> Emitter::emit_new(NodeId id) {
  switch (graph_.kind(id)) {
    case Kind::kNone: out_.none(); return {};
    case Kind::kBool: out_.boolean(*graph_.as_bool(id)); return {};
    case Kind::kInt: out_.signed_integer(*graph_.as_int(id)); return {};
    case Kind::kFloat: out_.real(*graph_.as_float(id)); return {};
    case Kind::kBigInt: {
      const ByteSpan digits = *graph_.as_big_int(id);
      if (digits.size() > kMaxLong)
        return fail(Code::kUnsupported, "", "holds an integer of " + std::to_string(digits.size()) + " bytes");
      out_.long_integer(as_text(digits));
      return {};
    }
    case Kind::kStr:
      if (is_text(*graph_.as_str(id))) out_.text(*graph_.as_str(id));
      else out_.binary_text(*graph_.as_str(id));
      remember(id);
      return {};
    case Kind::kBytes:
      if (graph_.form(id) == CallForm::kByteArray) {
        out_.global("builtins", "bytearray");
        bytes(*graph_.as_bytes(id));
        out_.tuple1();
        out_.reduce();
      } else {
        bytes(*graph_.as_bytes(id));
      }
      remember(id);
      return {};
    case Kind::kGlobal: return name(id);
    case Kind::kPersistent: CKPT_TRY(persistent_(id)); remember(id); return {};
    case Kind::kObject: return object(id);
    default: return container(id);
  }
}

Result<void> Emitter::name(NodeId id) {
  const std::string module(graph_.global(id)->module), name(graph_.global(id)->name);
  // The opcode ends them by newlines: what follows one would be a program of the source's.
  if ((module + name).find('\n') != std::string::npos)
    return fail(Code::kUnsupported, module + "." + name, "is a name with a newline");
  // Before protocol 4 a name is one attribute of its module. Python has a getattr then, which reaches into anything.
  if (name.find('.') != std::string::npos)
    return fail(Code::kUnsupported, module + "." + name, "is a class inside another, which protocol 2 has no name for");
  out_.global(module, name);
  return {};
}

void Emitter::bytes(ByteSpan data) {
  out_.global("_codecs", "encode");
  out_.mark();
  out_.text(latin1(data));
  out_.text("latin1");
  out_.tuple();
  out_.reduce();
}

Result<void> Emitter::items(std::span<const NodeId> nodes) {
  for (NodeId node : nodes) CKPT_TRY(emit(node));
  return {};
}

Result<void> Emitter::pairs(NodeId id) {
  const auto nodes = graph_.items(id);
  bool any = false;
  for (size_t i = 0; i + 1 < nodes.size(); i += 2) {
    if (changes_ != nullptr && changes_->leaves_out(id, i / 2)) continue;
    if (!any) out_.mark();
    any = true;
    const std::string* key = changes_ != nullptr ? changes_->new_key(id, i / 2) : nullptr;
    if (key != nullptr) out_.text(*key);
    else CKPT_TRY(emit(nodes[i]));
    CKPT_TRY(emit(nodes[i + 1]));
  }
  if (any) out_.set_items();
  return {};
}

/// Lists and dicts are remembered before what is in them, so that they may hold themselves.
Result<void> Emitter::container(NodeId id) {
  const auto nodes = graph_.items(id);
  const Kind kind = graph_.kind(id);
  if (kind == Kind::kTuple) {
    if (nodes.empty()) {
      out_.empty_tuple();
      return {};
    }
    out_.mark();
    CKPT_TRY(items(nodes));
    out_.tuple();
    remember(id);
    return {};
  }
  if (kind == Kind::kSet) {
    out_.global("builtins", graph_.form(id) == CallForm::kFrozen ? "frozenset" : "set");
    out_.empty_list();
    out_.mark();
    CKPT_TRY(items(nodes));
    out_.appends();
    out_.tuple1();
    out_.reduce();
    remember(id);
    return {};
  }
  if (kind == Kind::kList) out_.empty_list();
  else out_.empty_dict();
  remember(id);
  open_.erase(id);  // from here on it is in the memo, where it is used again
  if (kind == Kind::kDict) return pairs(id);
  if (nodes.empty()) return {};
  out_.mark();
  CKPT_TRY(items(nodes));
  out_.appends();
  return {};
}

Result<void> Emitter::object(NodeId id) {
  if (graph_.form(id) == CallForm::kNewKeywords) {
    auto args = graph_.tuple(graph_.args(id));
    out_.global("copyreg", "__newobj_ex__");
    out_.mark();
    CKPT_TRY(emit(graph_.callee(id)));
    CKPT_TRY(items(args));
    out_.tuple();
    out_.reduce();
  } else {
    CKPT_TRY(emit(graph_.callee(id)));
    CKPT_TRY(emit(graph_.args(id)));
    if (graph_.form(id) == CallForm::kNew) out_.new_object();
    else out_.reduce();
  }
  remember(id);
  open_.erase(id);
  const auto nodes = graph_.items(id);
  if (graph_.items_are_pairs(id)) {
    CKPT_TRY(pairs(id));
  } else if (!nodes.empty()) {
    out_.mark();
    CKPT_TRY(items(nodes));
    out_.appends();
  }
  if (graph_.state(id) != kNoNode) {
    CKPT_TRY(emit(graph_.state(id)));
    out_.build();
  }
  return {};
}

}  // namespace ckpt::pickle
