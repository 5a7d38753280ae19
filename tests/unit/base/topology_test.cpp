#include "lib/base/topology.h"

#include <doctest/doctest.h>

using namespace ckpt;

TEST_CASE("topology: lines of rank, node and rack") {
  const auto places = parse_topology("# a cluster\n1 b r1\n\n0  a\tr0 # the first\n2 a r0", "file");
  REQUIRE(places);
  CHECK(*places == std::vector<Place>{{"a", "r0"}, {"b", "r1"}, {"a", "r0"}});
  for (const char* wrong : {"", "0", "x a", "0 a b c", "0 a\n0 b", "1 a", "0 a\n2 b", "-1 a", "99999999 a", "0x0 a"})
    CHECK_MESSAGE(!parse_topology(wrong, "file"), wrong);
}

TEST_CASE("topology: coordinates, with a rack and without") {
  const auto places = parse_topology("0 a r dp=0 tp=1\n1 b tp=1 dp=1", "file");
  REQUIRE(places);
  CHECK(*places == std::vector<Place>{{"a", "r", {{"dp", 0}, {"tp", 1}}}, {"b", "", {{"dp", 1}, {"tp", 1}}}});
  for (const char* wrong : {"0 a dp=", "0 a dp=x", "0 a dp=-1", "0 a dp=1 dp=1", "0 a xp=1", "0 a dp=0 r",
                            "0 a r s dp=0",
                            "0 a dp=0\n1 a dp=0", "0 a dp=0\n1 a tp=1", "0 a dp=0\n1 a", "0 a dp=9999999"})
    CHECK_MESSAGE(!parse_topology(wrong, "file"), wrong);
}

TEST_CASE("topology: replicas differ in dp and cp alone") {
  const auto places = parse_topology("0 a dp=0 tp=0\n1 a dp=0 tp=1\n2 b dp=1 tp=0\n3 b dp=1 tp=1", "file");
  REQUIRE(places);
  CHECK(replicas(*places) == std::vector<std::vector<uint32_t>>{{0, 2}, {1, 3}});
  const auto stages = parse_topology("0 a pp=0 ep=0\n1 a pp=0 ep=1\n2 b pp=1 ep=0", "file");
  REQUIRE(stages);
  CHECK(replicas(*stages) == std::vector<std::vector<uint32_t>>{{0}, {1}, {2}});
  const auto plain = parse_topology("0 a\n1 b", "file");
  REQUIRE(plain);
  CHECK(replicas(*plain).empty());
}
