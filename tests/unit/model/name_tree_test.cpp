#include "lib/model/name_tree.h"

#include <doctest/doctest.h>

using namespace ckpt;
using namespace ckpt::tensor;
using namespace ckpt::model;

namespace {

/// "name=bytes" a node in the order of a walk, a blank in front for each level.
std::vector<std::string> drawn(const std::vector<std::string>& keys) {
  std::vector<Tensor> tensors;
  for (const std::string& key : keys) {
    tensors.emplace_back();
    tensors.back().key = key;
    tensors.back().dtype = DType::kInt8;
    tensors.back().shape = {1};
  }
  std::vector<const Tensor*> pointers;
  for (const Tensor& t : tensors) pointers.push_back(&t);
  const std::vector<NameNode> nodes = name_tree(pointers);
  std::vector<std::string> out;
  std::vector<uint32_t> open(nodes[0].children.rbegin(), nodes[0].children.rend());
  CHECK(nodes[0].bytes == keys.size());
  while (!open.empty()) {
    const NameNode& node = nodes[open.back()];
    open.pop_back();
    out.push_back(std::string(node.depth - 1, ' ') + node.name + "=" + std::to_string(node.bytes) +
                  (node.tensor != nullptr ? "!" : ""));
    open.insert(open.end(), node.children.rbegin(), node.children.rend());
  }
  return out;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("name tree: sizes rolled up, chains joined, numbers in their order") {
  CHECK(drawn({"d.layers.10.w", "d.layers.2.w", "d.layers.2.b", "e.w"}) ==
        Lines{"d.layers=3", " 2=2", "  b=1!", "  w=1!", " 10.w=1!", "e.w=1!"});
  CHECK(drawn({}).empty());
}

TEST_CASE("name tree: names that begin alike, and a tensor whose name goes on in others") {
  CHECK(drawn({"a", "a-b", "a.b", "a.c", "ab", "a-b.x"}) ==
        Lines{"a=3!", " b=1!", " c=1!", "a-b=2!", " x=1!", "ab=1!"});
}

TEST_CASE("name tree: odd names") {
  CHECK(drawn({"", ".", "..", "a..b", "a."}) == Lines{"=3!", " =2!", "  =1!", "a.=2!", " b=1!"});
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "x.";
  CHECK(drawn({deep + "1", deep + "2"}).size() <= 4);
}

TEST_CASE("name tree: the dtypes below a name") {
  CHECK(dtype_list(0) == "");
  CHECK(dtype_list(uint64_t{1} << static_cast<unsigned>(DType::kBfloat16) | 1) == "bool, bfloat16");
}
