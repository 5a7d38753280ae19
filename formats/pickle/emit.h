// A graph, or a part of one, as a pickle again: protocol 2, from the opcodes that torch's restricted loader knows.
// Nothing is understood and nothing is run: what was a call of a name becomes a call of that name.
#pragma once

#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "formats/pickle/pickle.h"
#include "formats/pickle/writer.h"

namespace ckpt::pickle {

/// What of a graph is written otherwise than it is.
class Changes {
 public:
  virtual ~Changes() = default;
  /// A pair of a dict, or of an object with pairs, is not written. `item`: its number.
  virtual bool leaves_out(NodeId holder, size_t item) const = 0;
  /// Another key for such a pair; null: its own.
  virtual const std::string* new_key(NodeId holder, size_t item) const = 0;
  /// Writes something else in the node's place: one value on the stack. False: nothing was written, the node is.
  virtual Result<bool> replace(NodeId node) = 0;
};

/// Writes values of one graph. What occurs more than once is written once, also across calls of `emit`. Both must
/// outlive it.
class Emitter {
 public:
  /// Writes what stands for a persistent id (a storage): leaves one value on the stack.
  using Persistent = std::function<Result<void>(NodeId)>;
  Emitter(Writer& out, const Graph& graph, Persistent persistent, Changes* changes = nullptr);

  /// One value on the stack. kUnsupported: nested too deep, a tuple that holds itself, an integer that is too long.
  Result<void> emit(NodeId id);
  /// The writer begins a pickle of its own.
  void start_anew() { memo_.clear(); }

 private:
  Result<void> emit_new(NodeId id);
  Result<void> container(NodeId id);
  Result<void> object(NodeId id);
  Result<void> items(std::span<const NodeId> nodes);
  Result<void> pairs(NodeId id);
  void bytes(ByteSpan data);
  Result<void> name(NodeId id);
  void remember(NodeId id);

  Writer& out_;
  const Graph& graph_;
  Persistent persistent_;
  Changes* changes_;
  std::vector<uint8_t> uses_;                       ///< per node: how often it occurs; 2: more than once
  std::unordered_map<NodeId, uint32_t> memo_;
  std::unordered_set<NodeId> open_;
  size_t depth_ = 0;
};

}  // namespace ckpt::pickle
