#include "lib/model/name_tree.h"

#include <algorithm>
#include <utility>

namespace ckpt::model {

bool natural_less(std::string_view a, std::string_view b) {
  auto digit = [](char c) { return c >= '0' && c <= '9'; };
  auto number = [&](std::string_view& text) {
    size_t zeros = std::min(text.find_first_not_of('0'), text.size());
    size_t end = zeros;
    while (end < text.size() && digit(text[end])) ++end;
    std::string_view out = text.substr(zeros, end - zeros);
    text.remove_prefix(end);
    return out;
  };
  while (!a.empty() && !b.empty()) {
    if (digit(a[0]) && digit(b[0])) {
      std::string_view x = number(a), y = number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

std::string dtype_list(uint64_t dtypes) {
  std::string out;
  for (unsigned i = 0; i < 64; ++i) {
    if ((dtypes >> i & 1) != 0)
      out += (out.empty() ? "" : ", ") + std::string(tensor::dtype_name(static_cast<tensor::DType>(i)));
  }
  return out;
}

namespace {

/// A longer name ends in one part: nobody's tree is deeper, and a stranger's file costs no more than its size.
constexpr uint32_t kMaxDepth = 100;

/// Byte by byte with the dot first: what begins alike up to a dot is together, and `a` stands right before `a.b`.
bool tree_less(const tensor::Tensor* a, const tensor::Tensor* b) {
  auto rank = [](char c) { return c == '.' ? 0 : static_cast<int>(static_cast<uint8_t>(c)) + 1; };
  return std::lexicographical_compare(a->key.begin(), a->key.end(), b->key.begin(), b->key.end(),
                                      [&](char x, char y) { return rank(x) < rank(y); });
}

class Builder {
 public:
  Builder() { nodes_.emplace_back(); }

  /// In the order of `tree_less`: a part that is there already is the last child.
  void add(const tensor::Tensor& t) {
    uint32_t at = 0;
    std::string_view rest = t.key;
    for (;;) {
      const size_t dot = nodes_[at].depth + 1 < kMaxDepth ? rest.find('.') : std::string_view::npos;
      at = child(at, rest.substr(0, dot));
      if (dot == std::string_view::npos) break;
      rest.remove_prefix(dot + 1);
    }
    nodes_[at].tensor = &t;
    const uint64_t bytes = t.bytes(), elements = tensor::element_count(t.shape).value_or(0);
    for (uint32_t up = at;; up = nodes_[up].parent) {
      nodes_[up].bytes += bytes;
      nodes_[up].elements += elements;
      nodes_[up].tensors += 1;
      nodes_[up].dtypes |= uint64_t{1} << static_cast<unsigned>(t.dtype);
      if (up == 0) return;
    }
  }

  std::vector<NameNode> finish() {
    std::vector<NameNode> out;
    out.push_back(std::move(nodes_[0]));
    for (uint32_t at = 0; at < out.size(); ++at) {
      std::vector<uint32_t> below = std::exchange(out[at].children, {});  // still in `nodes_`
      std::sort(below.begin(), below.end(),
                [&](uint32_t a, uint32_t b) { return natural_less(nodes_[a].name, nodes_[b].name); });
      for (uint32_t index : below) {
        NameNode node = joined(std::move(nodes_[index]));
        node.parent = at;
        node.depth = out[at].depth + 1;
        out[at].children.push_back(static_cast<uint32_t>(out.size()));
        out.push_back(std::move(node));
      }
    }
    return out;
  }

 private:
  uint32_t child(uint32_t parent, std::string_view name) {
    const std::vector<uint32_t>& children = nodes_[parent].children;
    if (!children.empty() && nodes_[children.back()].name == name) return children.back();
    const auto index = static_cast<uint32_t>(nodes_.size());
    NameNode node;
    node.name = name;
    node.parent = parent;
    node.depth = nodes_[parent].depth + 1;
    nodes_.push_back(std::move(node));
    nodes_[parent].children.push_back(index);
    return index;
  }

  NameNode joined(NameNode node) {
    while (node.tensor == nullptr && node.children.size() == 1) {
      NameNode only = std::move(nodes_[node.children[0]]);
      only.name = node.name + "." + only.name;
      node = std::move(only);
    }
    return node;
  }

  std::vector<NameNode> nodes_;
};

}  // namespace

std::vector<NameNode> name_tree(std::span<const tensor::Tensor* const> tensors) {
  std::vector<const tensor::Tensor*> sorted(tensors.begin(), tensors.end());
  std::sort(sorted.begin(), sorted.end(), tree_less);
  Builder builder;
  for (const tensor::Tensor* t : sorted) builder.add(*t);
  return builder.finish();
}

}  // namespace ckpt::model
