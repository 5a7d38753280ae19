// Dicts of a pickle's graph, their subclasses included: where their pairs lie, and their keys as text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/pickle/pickle.h"

namespace ckpt::formats {

inline constexpr size_t kMaxKeyBytes = 4096;  ///< of a value's whole key

bool is_dict(const pickle::Graph& graph, pickle::NodeId id);

struct DictPair {
  pickle::NodeId key, value;
  pickle::NodeId holder = pickle::kNoNode;  ///< the node that has it as its pair number `item`; none: a list of two
  uint32_t item = 0;
};
/// Those of the call's arguments before those that came by SETITEMS: Python 2 pickles an OrderedDict as
/// `OrderedDict([[key, value], ...])`, a Counter is `Counter({...})`. Nothing: arguments of another kind.
std::optional<std::vector<DictPair>> dict_pairs(const pickle::Graph& graph, pickle::NodeId id);

/// A dict's key as Python's str() has it, near enough: bytes are b'..', what a call makes is `module.Class(value)`.
/// More than kMaxKeyBytes: cut. Nothing: a key that has no text.
std::optional<std::string> key_text(const pickle::Graph& graph, pickle::NodeId id);

}  // namespace ckpt::formats
