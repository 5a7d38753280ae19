// Which nodes of a graph lead to a tensor, or to a storage that belongs to none.
#include "formats/torch_save/walker.h"

namespace ckpt::formats {

using pickle::Graph;
using pickle::Kind;
using pickle::kNoNode;
using pickle::NodeId;

namespace {

template <class See>
void for_each_part(const Graph& graph, NodeId id, See see) {
  for (NodeId item : graph.items(id)) see(item);
  if (graph.kind(id) != Kind::kObject) return;
  see(graph.args(id));
  if (graph.state(id) != kNoNode) see(graph.state(id));
}

/// For each node those that it is a part of, one after another.
struct Parents {
  std::vector<uint64_t> first;  ///< per node, and one more
  std::vector<NodeId> nodes;

  explicit Parents(const Graph& graph) : first(graph.node_count() + 2, 0) {
    const auto count = static_cast<NodeId>(graph.node_count());
    for (NodeId id = 0; id < count; ++id) for_each_part(graph, id, [&](NodeId part) { ++first[part + 2]; });
    for (size_t i = 2; i < first.size(); ++i) first[i] += first[i - 1];
    nodes.resize(first.back());
    for (NodeId id = 0; id < count; ++id)
      for_each_part(graph, id, [&](NodeId part) { nodes[first[part + 1]++] = id; });
  }
};

/// Which nodes `begins` is true of, and which lead to one of them on a way that `ends` is not true of. Each node is
/// looked at once, however deep it lies.
template <class Begins, class Ends>
std::vector<bool> spread(const Graph& graph, const Parents& parents, Begins begins, Ends ends) {
  std::vector<bool> holds(graph.node_count(), false);
  std::vector<NodeId> open;
  auto take = [&](NodeId id) {
    if (holds[id] || ends(id)) return;
    holds[id] = true;
    open.push_back(id);
  };
  for (NodeId id = 0; id < graph.node_count(); ++id) {
    if (begins(id)) take(id);
    while (!open.empty()) {
      const NodeId part = open.back();
      open.pop_back();
      for (uint64_t i = parents.first[part]; i < parents.first[part + 1]; ++i) take(parents.nodes[i]);
    }
  }
  return holds;
}

/// Adds to `seen` all that the nodes are made of, and calls `see` of each that is new.
template <class See>
void below(const Graph& graph, const std::vector<NodeId>& from, std::vector<bool>& seen, See see) {
  std::vector<NodeId> open;
  auto take = [&](NodeId id) {
    if (id == kNoNode || seen[id]) return;
    seen[id] = true;
    open.push_back(id);
    see(id);
  };
  for (NodeId id : from) take(id);
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    for (NodeId item : graph.items(id)) take(item);
    for (NodeId part : {graph.callee(id), graph.args(id), graph.state(id)}) take(part);
  }
}

}  // namespace

Holders find_holders(const Graph& graph) {
  const Parents parents(graph);
  auto tensor = [&](NodeId id) { return pickle::is_torch_tensor(graph, id); };
  auto storage = [&](NodeId id) { return graph.kind(id) == Kind::kPersistent; };
  return {spread(graph, parents, tensor, [](NodeId) { return false; }), spread(graph, parents, storage, tensor)};
}

std::vector<NodeId> unreached_tensors(const Graph& graph, NodeId root, const std::vector<bool>& reached,
                                      const std::vector<NodeId>& refused) {
  std::vector<bool> named(graph.node_count(), false), seen(graph.node_count(), false);
  std::vector<NodeId> out;
  below(graph, refused, named, [](NodeId) {});
  below(graph, {root}, seen, [&](NodeId id) {
    if (!reached[id] && !named[id] && pickle::is_torch_tensor(graph, id)) out.push_back(id);
  });
  return out;
}

}  // namespace ckpt::formats
