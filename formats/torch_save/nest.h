// Values under paths, as one tree: what a flat checkpoint was nested as before its keys were joined by dots.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "lib/tensor/catalog.h"

namespace ckpt::formats {

class Nest {
 public:
  static constexpr size_t kRoot = 0;
  static constexpr size_t kNoLeaf = SIZE_MAX;
  struct Node {
    /// Text, or a number: then `name` is empty. Ordered as they are written.
    std::map<std::tuple<bool, int64_t, std::string>, size_t> children;
    size_t leaf = kNoLeaf;  ///< a value; it has no children
    bool indexed = true;    ///< every child came as a place in a list
  };

  Nest() : nodes_(1) {}
  /// False, and nothing changed, where a value lies at the path already, on the way to it, or below it.
  bool add(const tensor::KeyPath& path, size_t leaf);
  const Node& node(size_t id) const { return nodes_[id]; }
  /// Its children are a list: places 0, 1, 2, ... without a gap.
  bool is_list(size_t id) const;

 private:
  std::vector<Node> nodes_;
};

}  // namespace ckpt::formats
