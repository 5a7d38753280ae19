#include "lib/model/slice.h"

#include <doctest/doctest.h>

using namespace ckpt;
using namespace ckpt::tensor;
using namespace ckpt::model;

namespace {

std::string cut(std::string_view text, const Shape& shape) {
  auto slice = parse_slice(text, shape);
  if (!slice)
    return std::string(slice.error().code == Code::kUsage ? "refused: " : "wrong code: ") + slice.error().text();
  std::string out;
  for (size_t i = 0; i < shape.size(); ++i) {
    out += (i == 0 ? "" : " ") + std::to_string(slice->region.offset[i]) + "+" + std::to_string(slice->region.shape[i]);
  }
  out += " ->";
  for (uint64_t n : slice->shape) out += " " + std::to_string(n);
  return out;
}

}  // namespace

TEST_CASE("slice: as numpy cuts") {
  const Shape shape = {10, 20, 30};
  CHECK(cut("", shape) == "0+10 0+20 0+30 -> 10 20 30");
  CHECK(cut("[...]", shape) == "0+10 0+20 0+30 -> 10 20 30");
  CHECK(cut("0:3,:,3", shape) == "0+3 0+20 3+1 -> 3 20");
  CHECK(cut(" -1 , 5: ", shape) == "9+1 5+15 0+30 -> 15 30");
  CHECK(cut("...,-5:-1", shape) == "0+10 0+20 25+4 -> 10 20 4");
  CHECK(cut("1,...,2", shape) == "1+1 0+20 2+1 -> 20");
  CHECK(cut("1,2,3", shape) == "1+1 2+1 3+1 ->");
  CHECK(cut("1,2,3,...", shape) == "1+1 2+1 3+1 ->");
  CHECK(cut("[2:4,]", shape) == "2+2 0+20 0+30 -> 2 20 30");
  CHECK(cut("5:2", shape) == "5+0 0+20 0+30 -> 0 20 30");
  CHECK(cut("-100:100", shape) == "0+10 0+20 0+30 -> 10 20 30");
  CHECK(cut("50:", shape) == "10+0 0+20 0+30 -> 0 20 30");
  CHECK(cut("2:5:1", shape) == "2+3 0+20 0+30 -> 3 20 30");
  CHECK(cut("", {}) == " ->");
  CHECK(cut("...", {}) == " ->");
  CHECK(cut(":", {UINT64_MAX}) == "0+" + std::to_string(UINT64_MAX) + " -> " + std::to_string(UINT64_MAX));
}

TEST_CASE("slice: what is wrong or does not fit is refused") {
  const Shape shape = {10, 20};
  for (const char* text : {"10", "-11", "0,0,0", "x", "1:x", "::2", "1:2:3:4", ",", "0,,1", "...,...", "1.5",
                           "9999999999999999999999", "0x1", "--1", "+1", "1 2"}) {
    CAPTURE(text);
    CHECK(cut(text, shape).substr(0, 8) == "refused:");
  }
  CHECK(cut("0", {}).substr(0, 8) == "refused:");
}
