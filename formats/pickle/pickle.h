// A pickle is a program for a stack machine. Here it runs without importing or calling anything: names stay names,
// calls become nodes that hold what would have been called. What the nodes mean is decided by code of ours
// (formats.md 3.4).
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::pickle {

struct Limits {
  uint64_t bytes = uint64_t{1} << 30;
  uint64_t opcodes = 200'000'000;
  uint64_t nodes = 100'000'000;         ///< 16 bytes each
  uint64_t stack = 50'000'000;
  uint64_t memo = 50'000'000;
  uint64_t string_bytes = 64 << 20;
  uint64_t long_bytes = 1 << 10;
};

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = UINT32_MAX;

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,
  kFloat,
  kStr,
  kBytes,
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,  ///< a name: module and attribute
  kObject,  ///< what a call would have made: callee, arguments, perhaps a state (BUILD) and items (SETITEMS, APPENDS)
  kPersistent,  ///< BINPERSID: torch's storages
};

/// What a global means to us. Everything that is not listed is kUnknown and stays opaque.
enum class Meaning : uint8_t {
  kUnknown,
  kOpaque,  ///< harmless by name (Megatron's own records, plans): shown, not interpreted
  kOrderedDict,
  kDefaultDict,
  kCounter,
  kSetType,
  kFrozenSetType,
  kByteArray,
  kBytesType,
  kComplex,
  kListType,
  kDictType,
  kTupleType,
  kSlice,
  kRange,
  kGetattr,
  kCodecsEncode,
  kPath,
  kNamespace,
  kBytesIo,
  kNumpyReconstruct,
  kNumpyArray,
  kNumpyDType,
  kNumpyScalar,
  kTorchSize,
  kTorchDevice,
  kTorchDType,
  kTorchStorage,
  kUntypedStorage,
  kGetLayout,
  kTensorClass,
  kParameterClass,
  kRebuildTensor,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildQuantised,
  kRebuildParameter,
  kRebuildMeta,
  kRebuildFromType,
  kRebuildSparse,
  kRebuildNested,
  kRebuildWrapper,
  kRebuildFromCpu,
  kRebuildOther,
  kDcpMetadata,
  kDcpTensor,
  kDcpChunk,
  kDcpBytes,
  kDcpIndex,
  kDcpProperties,
  kDcpMemoryFormat,
  kDcpStorageInfo,
  kDcpStorageMeta,
};
Meaning meaning_of(std::string_view module, std::string_view name);

struct GlobalName {
  std::string_view module, name;
  Meaning meaning;
  uint64_t offset = 0;  ///< of the opcode that names it first
  std::string text() const { return std::string(module) + "." + std::string(name); }
};

/// How an object came about: a function's call, a class's __new__ without or with keywords. A set: frozen. Bytes: a
/// bytearray.
enum class CallForm : uint8_t { kCall, kNew, kNewKeywords, kFrozen, kByteArray };

/// The result of one pickle: an arena of nodes that point into the pickle's own bytes, which must stay where they are.
/// A graph may hold itself (lists, dicts, memo): whoever walks it needs a budget. Ids come from the graph and are
/// valid.
class Graph {
 public:
  NodeId root() const { return root_; }
  /// Bytes of the pickle, STOP included.
  size_t consumed() const { return consumed_; }
  Kind kind(NodeId id) const { return nodes_[id].kind; }
  CallForm form(NodeId id) const { return nodes_[id].form; }
  bool is_none(NodeId id) const { return kind(id) == Kind::kNone; }
  std::optional<bool> as_bool(NodeId id) const;
  /// Also of a bool, as in Python. Nothing for integers past 64 bits.
  std::optional<int64_t> as_int(NodeId id) const;
  std::optional<double> as_float(NodeId id) const;
  /// UTF-8 that may hold lone surrogates; not checked.
  std::optional<std::string_view> as_str(NodeId id) const;
  std::optional<ByteSpan> as_bytes(NodeId id) const;
  /// Little-endian two's complement.
  std::optional<ByteSpan> as_big_int(NodeId id) const;
  /// Elements of a tuple, list, set; keys and values in turn of a dict; items of an object. Empty for other kinds.
  std::span<const NodeId> items(NodeId id) const;
  /// An object's items: came by SETITEMS, so that keys and values are in turn.
  bool items_are_pairs(NodeId id) const;
  std::span<const NodeId> tuple(NodeId id) const {
    return kind(id) == Kind::kTuple ? items(id) : std::span<const NodeId>();
  }
  const GlobalName* global(NodeId id) const;
  /// kObject: what was called; kNoNode otherwise.
  NodeId callee(NodeId id) const;
  /// kObject: the arguments; kPersistent: the persistent id; kNoNode otherwise.
  NodeId args(NodeId id) const;
  /// kObject: the state that BUILD gave it, kNoNode without one.
  NodeId state(NodeId id) const;
  /// The callee's meaning, of an object that calls a global; kUnknown otherwise.
  Meaning call(NodeId id) const;
  Meaning global_meaning(NodeId id) const;
  /// The value under a text key of a dict, of an object's items, or of its state when that is a dict (attributes); a
  /// repeated key's last value, as Python has it. kNoNode: not there.
  NodeId get(NodeId dict, std::string_view key) const;
  std::span<const GlobalName> globals() const { return globals_; }
  size_t node_count() const { return nodes_.size(); }

 private:
  friend class Machine;
  struct ItemRange { uint32_t first, capacity; };
  struct ObjectParts { uint32_t args, extra; };
  struct Node {
    Kind kind = Kind::kNone;
    bool flag = false;        ///< kBool: the value; kStr: it lies in unescaped_, `offset` is the index
    CallForm form = CallForm::kCall;
    uint32_t size = 0;        ///< bytes of text, items of a container; kObject: callee; kGlobal: index
    union {
      int64_t integer = 0;
      double real;
      uint64_t offset;        ///< of text in the pickle
      ItemRange range;        ///< containers: in items_
      ObjectParts object;     ///< extra: index into extras_, or kNoNode
    };
  };
  struct Extra {
    NodeId state = kNoNode;
    uint32_t first = 0, count = 0, capacity = 0;
    bool pairs = false;
  };

  ByteSpan data_;
  std::vector<Node> nodes_;
  std::vector<NodeId> items_;
  std::vector<Extra> extras_;
  std::vector<GlobalName> globals_;
  std::deque<std::string> unescaped_;  ///< texts that are not in the pickle as they are
  NodeId root_ = 0;
  size_t consumed_ = 0;
};

inline std::optional<bool> Graph::as_bool(NodeId id) const {
  if (kind(id) != Kind::kBool) return std::nullopt;
  return nodes_[id].flag;
}

inline std::optional<int64_t> Graph::as_int(NodeId id) const {
  if (kind(id) == Kind::kBool) return nodes_[id].flag ? 1 : 0;
  if (kind(id) != Kind::kInt) return std::nullopt;
  return nodes_[id].integer;
}

inline std::optional<double> Graph::as_float(NodeId id) const {
  if (kind(id) != Kind::kFloat) return std::nullopt;
  return nodes_[id].real;
}

inline std::optional<std::string_view> Graph::as_str(NodeId id) const {
  if (kind(id) != Kind::kStr) return std::nullopt;
  if (nodes_[id].flag) [[unlikely]] return unescaped_[nodes_[id].offset];
  return as_text(data_.subspan(nodes_[id].offset, nodes_[id].size));
}

inline std::optional<ByteSpan> Graph::as_bytes(NodeId id) const {
  if (kind(id) != Kind::kBytes) return std::nullopt;
  return data_.subspan(nodes_[id].offset, nodes_[id].size);
}

inline std::optional<ByteSpan> Graph::as_big_int(NodeId id) const {
  if (kind(id) != Kind::kBigInt) return std::nullopt;
  return data_.subspan(nodes_[id].offset, nodes_[id].size);
}

inline std::span<const NodeId> Graph::items(NodeId id) const {
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

inline bool Graph::items_are_pairs(NodeId id) const {
  const Node& node = nodes_[id];
  return node.kind == Kind::kObject && node.object.extra != kNoNode && extras_[node.object.extra].pairs;
}

inline const GlobalName* Graph::global(NodeId id) const {
  return kind(id) == Kind::kGlobal ? &globals_[nodes_[id].size] : nullptr;
}

inline NodeId Graph::callee(NodeId id) const { return kind(id) == Kind::kObject ? nodes_[id].size : kNoNode; }

inline NodeId Graph::args(NodeId id) const {
  return kind(id) == Kind::kObject || kind(id) == Kind::kPersistent ? nodes_[id].object.args : kNoNode;
}

inline NodeId Graph::state(NodeId id) const {
  if (kind(id) != Kind::kObject || nodes_[id].object.extra == kNoNode) return kNoNode;
  return extras_[nodes_[id].object.extra].state;
}

inline Meaning Graph::global_meaning(NodeId id) const {
  const GlobalName* name = id == kNoNode ? nullptr : global(id);
  return name == nullptr ? Meaning::kUnknown : name->meaning;
}

inline Meaning Graph::call(NodeId id) const { return global_meaning(callee(id)); }

/// kCorrupt: not a pickle, damaged, or hostile (the message says at which byte). kUnsupported: opcodes that no
/// checkpoint uses (extension registry, out-of-band buffers, protocol 0 instances).
Result<Graph> parse(ByteSpan data, const Limits& limits = {});

/// What a pickle does, read as Python would read it and as far as it goes: opcodes that `parse` refuses are taken, too,
/// and what was named before a mistake stays. For judging only (formats/pickle/scan.h): such a graph is no data.
struct LooseGraph {
  struct Change {
    NodeId global;
    uint64_t offset;
  };
  Graph graph;
  std::string stopped;           ///< why the reading ended before STOP; empty: it did not
  std::vector<Change> changed;   ///< globals that get a state or items: names of a module or class are overwritten
};
LooseGraph parse_loosely(ByteSpan data, const Limits& limits = {});

/// Refuse mode: kCorrupt with every global outside the allow-list as a cause.
Result<void> refuse_unknown_globals(const Graph& graph);

}  // namespace ckpt::pickle
