#include "formats/pickle/pickle.h"

namespace ckpt::pickle {

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
  Error error(Code::kCorrupt, "", "the pickle names what a checkpoint has no use for");
  for (const GlobalName& name : graph.globals()) {
    if (name.meaning == Meaning::kUnknown) error.causes.push_back(name.text());
  }
  if (error.causes.empty()) return {};
  return error;
}

}  // namespace ckpt::pickle
