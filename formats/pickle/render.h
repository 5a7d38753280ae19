// A pickle's graph as JSON for people and programs. Nothing is run; what is not understood is shown by its name.
#pragma once

#include <optional>
#include <vector>

#include "formats/pickle/pickle.h"

namespace ckpt::pickle {

struct RenderOptions {
  uint64_t max_nodes = 200'000;      ///< a list of the same list, 60 levels deep, has more
  uint32_t max_depth = 100;
  uint64_t max_string = 4096;        ///< bytes of one string
  bool indent = true;
};

/// A valid JSON value. dict with text keys -> object; with others -> {"__dict__": [[key, value], ...]}; tuple, list ->
/// array; bytes -> {"__bytes__": length, "hex": first ones}; torch.Size -> array; dtype -> "torch.float32"; a tensor ->
/// {"__tensor__": dtype, "shape": ...}; another object -> {"__class__": name, "args": ..., "state": ..., "items": ...};
/// what lies in itself -> {"__cycle__": true}; what the budget cuts -> {"__cut__": why}.
std::string to_json(const Graph& graph, NodeId id, const RenderOptions& options = {});

/// `_codecs.encode(text, "latin1")`, bytes as protocol 2 has them: text whose code points are the bytes. Nothing: the
/// node is something else.
std::optional<std::vector<std::byte>> latin1_bytes(const Graph& graph, NodeId id);

}  // namespace ckpt::pickle
