#include "formats/torch_save/nest.h"

namespace ckpt::formats {

using tensor::PathStep;

bool Nest::add(const tensor::KeyPath& path, size_t leaf) {
  auto key = [](const PathStep& step) {
    return step.kind == PathStep::Kind::kName ? std::tuple(false, int64_t{0}, step.name)
                                              : std::tuple(true, step.number, std::string());
  };
  if (path.empty()) return false;
  // First whether it fits, then the change.
  size_t at = kRoot;
  bool fresh = false;
  for (const PathStep& step : path) {
    if (nodes_[at].leaf != kNoLeaf) return false;
    auto found = nodes_[at].children.find(key(step));
    fresh = found == nodes_[at].children.end();
    if (fresh) break;
    at = found->second;
  }
  if (!fresh) return false;
  at = kRoot;
  for (const PathStep& step : path) {
    nodes_[at].indexed = nodes_[at].indexed && step.kind == PathStep::Kind::kIndex;
    auto [it, added] = nodes_[at].children.try_emplace(key(step), nodes_.size());
    at = it->second;
    if (added) nodes_.emplace_back();
  }
  nodes_[at].leaf = leaf;
  return true;
}

bool Nest::is_list(size_t id) const {
  const Node& node = nodes_[id];
  if (!node.indexed || node.children.empty() || id == kRoot) return false;
  // Ordered by number: the first and the last say whether there is a gap.
  return std::get<1>(node.children.begin()->first) == 0 &&
         std::get<1>(node.children.rbegin()->first) == static_cast<int64_t>(node.children.size()) - 1;
}

}  // namespace ckpt::formats
