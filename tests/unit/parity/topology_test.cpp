#include "lib/parity/topology.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

using namespace ckpt;
using namespace ckpt::parity;

TEST_CASE("topology: set l is local rank l of all nodes, where they are alike") {
  std::vector<Place> places;
  for (int rank = 0; rank < 12; ++rank) places.push_back({fmt::format("n{}", rank / 3), ""});
  const auto sets = make_sets(places, {Scheme::kXor, 1, FailureGroup::kNode, 16});
  REQUIRE(sets);
  CHECK(*sets == std::vector<std::vector<uint32_t>>{{0, 3, 6, 9}, {1, 4, 7, 10}, {2, 5, 8, 11}});
  const auto small = make_sets(places, {Scheme::kXor, 1, FailureGroup::kNode, 2});
  REQUIRE(small);
  CHECK(small->size() == 6);
  for (const auto& set : *small) CHECK(set[0] % 3 == set[1] % 3);
}

TEST_CASE("topology: no set has two ranks of a failure group, however uneven the groups are") {
  for (uint32_t seed = 1; seed < 200; ++seed) {
    std::vector<Place> places;
    uint32_t number = seed;
    for (uint32_t node = 0; node < 3 + seed % 7; ++node) {
      number = number * 1664525 + 1013904223;
      for (uint32_t local = 0; local < 1 + (number >> 16) % 4; ++local)
        places.push_back({fmt::format("n{}", node), fmt::format("rack{}", node / 2)});
    }
    for (const FailureGroup group : {FailureGroup::kNode, FailureGroup::kRack}) {
      const auto sets = make_sets(places, {Scheme::kXor, 1, group, 4});
      if (!sets) continue;
      size_t ranks = 0;
      for (const auto& set : *sets) {
        std::set<std::string> groups;
        for (uint32_t rank : set) groups.insert(group == FailureGroup::kNode ? places[rank].node : places[rank].rack);
        CHECK(groups.size() == set.size());
        ranks += set.size();
      }
      CHECK(ranks == places.size());
    }
  }
}

TEST_CASE("topology: too few groups are refused by name") {
  const auto one = make_sets({{"a", ""}, {"a", ""}}, {Scheme::kXor, 1, FailureGroup::kNode, 16});
  REQUIRE_FALSE(one);
  CHECK(one.error().message.find("2 ranks on 1 node") != std::string::npos);
  CHECK_FALSE(make_sets({{"a", ""}, {"b", ""}}, {Scheme::kRs, 2, FailureGroup::kNode, 16}));
  CHECK_FALSE(make_sets({{"a", ""}, {"b", ""}}, {Scheme::kXor, 1, FailureGroup::kRack, 16}));  // racks are not known
  CHECK_FALSE(make_sets({{"a", "r"}, {"b", "r"}}, {Scheme::kXor, 1, FailureGroup::kRack, 16}));
}
