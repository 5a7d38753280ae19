#include "lib/parity/schedule.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/parity/galois.h"
#include "lib/parity/topology.h"

using namespace ckpt;
using namespace ckpt::parity;

namespace {

constexpr uint32_t kSymbolBytes = 8;
using Bytes = std::vector<uint8_t>;
/// By member and row; empty where there is none, or it is lost.
using Table = std::vector<std::vector<Bytes>>;

/// Carries a schedule out, hop by hop: what members have changes only through messages.
void simulate(const Schedule& schedule, Table& symbols) {
  std::map<std::pair<uint32_t, uint32_t>, Bytes> sums;
  for (const Chain& chain : schedule) {
    Bytes message(kSymbolBytes);
    for (const Sum::Term& hop : chain.hops) {
      const Bytes& own = symbols[hop.member][chain.row];
      if (own.size() != kSymbolBytes) FAIL("a symbol is read that is not there");
      for (uint32_t i = 0; i < kSymbolBytes; ++i) message[i] ^= gf_multiply(own[i], hop.factor);
    }
    Bytes& sum = sums[{chain.target, chain.row}];
    sum.resize(kSymbolBytes);
    for (uint32_t i = 0; i < kSymbolBytes; ++i) sum[i] ^= message[i];
  }
  for (auto& [where, sum] : sums) symbols[where.first][where.second] = sum;
}

Table encoded(const ErasureCode& code, const std::vector<std::string>& nodes) {
  Table out(code.members(), std::vector<Bytes>(code.rows()));
  uint32_t seed = 12345;
  for (uint32_t member = 0; member < code.members(); ++member) {
    for (uint32_t row = 0; row < code.rows(); ++row) {
      if (code.symbol(member, row).kind != Symbol::Kind::kData) continue;
      for (uint32_t i = 0; i < kSymbolBytes; ++i)
        out[member][row].push_back(static_cast<uint8_t>((seed = seed * 1664525 + 1013904223) >> 24));
    }
  }
  simulate(encoding_schedule(code, nodes), out);
  return out;
}

/// Everything of these members is lost, and comes back.
bool survives(const ErasureCode& code, const std::vector<std::string>& nodes, const Table& whole,
              const std::vector<uint32_t>& lost) {
  std::vector<Loss> losses(code.members());
  Table left = whole;
  for (uint32_t member : lost) {
    losses[member] = {true, true};
    for (Bytes& symbol : left[member]) symbol.clear();
  }
  const auto schedule = recovery_schedule(code, nodes, losses);
  if (!schedule) return false;
  simulate(*schedule, left);
  return left == whole;
}

std::vector<Place> cluster(uint32_t nodes, uint32_t local) {
  std::vector<Place> out;
  for (uint32_t rank = 0; rank < nodes * local; ++rank)
    out.push_back({fmt::format("n{}", rank / local), fmt::format("rack{}", rank / local / 2)});
  return out;
}

std::vector<std::string> nodes_of(const std::vector<uint32_t>& set, const std::vector<Place>& places) {
  std::vector<std::string> out;
  for (uint32_t rank : set) out.push_back(places[rank].node);
  return out;
}

/// Every single lost node, and for k = 2 every pair of nodes (where a set has one rank of each).
void check_losses(uint32_t nodes, uint32_t local, Scheme scheme, uint32_t parity) {
  CAPTURE(nodes);
  CAPTURE(local);
  const std::vector<Place> places = cluster(nodes, local);
  const auto sets = make_sets(places, {scheme, parity, FailureGroup::kNode, 16});
  REQUIRE(sets);
  std::set<uint32_t> all;
  const bool whole = scheme == Scheme::kRs && local > 1 && parity >= local;
  for (const std::vector<uint32_t>& set : *sets) {
    all.insert(set.begin(), set.end());
    const auto code = ErasureCode::make(scheme, static_cast<uint32_t>(set.size()), parity);
    REQUIRE(code);
    const std::vector<std::string> names = nodes_of(set, places);
    if (!whole) CHECK(std::set(names.begin(), names.end()).size() == names.size());
    const Table table = encoded(*code, names);
    auto members_on = [&](uint32_t node) {
      std::vector<uint32_t> out;
      for (uint32_t member = 0; member < set.size(); ++member) {
        if (names[member] == fmt::format("n{}", node)) out.push_back(member);
      }
      return out;
    };
    for (uint32_t node = 0; node < nodes; ++node) {
      REQUIRE(survives(*code, names, table, members_on(node)));
      for (uint32_t other = 0; other < node && !whole && parity == 2; ++other) {
        std::vector<uint32_t> lost = members_on(node), more = members_on(other);
        lost.insert(lost.end(), more.begin(), more.end());
        REQUIRE(survives(*code, names, table, lost));
      }
    }
  }
  CHECK(all.size() == places.size());
}

}  // namespace

TEST_CASE("schedule: 2 to 16 nodes with 1 to 8 ranks survive every single loss, with k = 2 every pair") {
  for (uint32_t nodes = 2; nodes <= 16; ++nodes) {
    for (uint32_t local : {1, 2, 3, 8}) {
      check_losses(nodes, local, Scheme::kXor, 1);
      check_losses(nodes, local, Scheme::kPartner, 1);
      if (nodes > 2) check_losses(nodes, local, Scheme::kRs, 2);
    }
  }
}

TEST_CASE("schedule: with as much parity as a node has ranks, one set takes whole nodes and survives each") {
  for (uint32_t nodes : {2, 3, 5}) {
    for (uint32_t local : {2, 3, 4}) check_losses(nodes, local, Scheme::kRs, local);
  }
  // ... and any so many ranks, wherever they run.
  const std::vector<Place> places = cluster(3, 2);
  const auto code = ErasureCode::make(Scheme::kRs, 6, 2);
  std::vector<std::string> names;
  for (const Place& place : places) names.push_back(place.node);
  const Table table = encoded(*code, names);
  for (uint32_t a = 0; a < 6; ++a) {
    for (uint32_t b = 0; b < a; ++b) CHECK(survives(*code, names, table, {a, b}));
  }
  CHECK_FALSE(survives(*code, names, table, {0, 1, 2}));
}

TEST_CASE("schedule: step t sends from node i to node i + t + 1, and every step is a permutation of the nodes") {
  for (uint32_t nodes = 2; nodes <= 16; ++nodes) {
    for (uint32_t parity : {1, 2}) {
      if (parity >= nodes) continue;
      const auto code = ErasureCode::make(parity == 1 ? Scheme::kXor : Scheme::kRs, nodes, parity);
      std::vector<std::string> names;
      for (uint32_t i = 0; i < nodes; ++i) names.push_back(fmt::format("n{}", i));
      std::map<uint32_t, std::map<uint32_t, std::set<uint32_t>>> to_in_step;
      std::map<uint32_t, size_t> sent, received;
      for (const Transfer& transfer : transfers(encoding_schedule(*code, names))) {
        CHECK(transfer.to == (transfer.from + transfer.step + 1) % nodes);
        CHECK(transfer.from != transfer.to);
        to_in_step[transfer.step][transfer.from].insert(transfer.to);
        ++sent[transfer.from], ++received[transfer.to];
      }
      for (const auto& [step, sends] : to_in_step) {
        std::set<uint32_t> receivers;
        for (const auto& [from, to] : sends) {
          CHECK(to.size() == 1);
          receivers.insert(*to.begin());
        }
        CHECK(receivers.size() == sends.size());
      }
      // k times its bytes leave each member, as many come in.
      for (uint32_t i = 0; i < nodes; ++i) {
        CHECK(sent[i] == parity * code->data_chunks());
        CHECK(received[i] == sent[i]);
      }
    }
  }
}

TEST_CASE("schedule: contributions are reduced inside a node before they leave it") {
  constexpr uint32_t kNodes = 4, kLocal = 4;
  const auto code = ErasureCode::make(Scheme::kRs, kNodes * kLocal, kLocal);
  std::vector<std::string> names;
  for (const Place& place : cluster(kNodes, kLocal)) names.push_back(place.node);
  size_t between = 0, inside = 0, other_local_rank = 0;
  for (const Transfer& transfer : transfers(encoding_schedule(*code, names))) {
    if (names[transfer.from] == names[transfer.to])
      ++inside;
    else
      ++between, other_local_rank += transfer.from % kLocal != transfer.to % kLocal ? 1 : 0;
  }
  // Without it every contribution would cross: (P - k) data chunks of P members for k parities, less those inside.
  const size_t rows = kNodes * kLocal;
  CHECK(between == rows * kLocal * (kNodes - 1));
  CHECK(between + inside == rows * kLocal * (rows - kLocal));
  // It leaves by the target's own local rank, but where that holds parity of the row itself.
  CHECK(other_local_rank < between / 4);
}

TEST_CASE("schedule: what is lost comes back by chains in which nobody receives more than he lost") {
  constexpr uint32_t kNodes = 8;
  const auto code = ErasureCode::make(Scheme::kXor, kNodes, 1);
  std::vector<std::string> names;
  for (uint32_t i = 0; i < kNodes; ++i) names.push_back(fmt::format("n{}", i));
  std::vector<Loss> losses(kNodes);
  losses[3] = {true, true};
  std::map<uint32_t, size_t> received, first;
  const auto schedule = recovery_schedule(*code, names, losses);
  REQUIRE(schedule);
  for (const Transfer& transfer : transfers(*schedule)) ++received[transfer.to];
  for (const Chain& chain : *schedule) ++first[chain.hops.front().member];
  for (uint32_t i = 0; i < kNodes; ++i) CHECK(received[i] <= kNodes);
  CHECK(first.size() == kNodes - 1);  // another one begins in each row
}

TEST_CASE("code: what it cannot do is refused") {
  CHECK_FALSE(ErasureCode::make(Scheme::kXor, 1, 1));
  CHECK_FALSE(ErasureCode::make(Scheme::kXor, 4, 2));
  CHECK_FALSE(ErasureCode::make(Scheme::kRs, 2, 2));
  CHECK_FALSE(ErasureCode::make(Scheme::kRs, 4, 0));
  CHECK_FALSE(ErasureCode::make(Scheme::kRs, 250, 8));
  CHECK(ErasureCode::make(Scheme::kRs, 248, 8));
}

TEST_CASE("code: parity alone that is lost comes back, too, and losses beyond the code are known") {
  const auto code = ErasureCode::make(Scheme::kRs, 5, 2);
  CHECK(recovery(*code, std::vector<Loss>(5))->empty());
  std::vector<Loss> losses(5);
  for (Loss& loss : losses) loss.parity = true;
  CHECK(recovery(*code, losses)->size() == 10);
  losses[0].data = true;
  CHECK_FALSE(recovery(*code, losses));
}

TEST_CASE("galois: a field; blocks by ISA-L and by plain loops agree") {
  for (unsigned a = 1; a < 256; ++a) {
    const auto x = static_cast<uint8_t>(a);
    CHECK(gf_multiply(x, gf_inverse(x)) == 1);
    CHECK(gf_multiply(x, 1) == x);
    CHECK(gf_multiply(x, 0) == 0);
  }
  std::vector<std::byte> from(256), plain(256), fast(256), scaled(256);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i);
  for (unsigned factor = 0; factor < 256; ++factor) {
    const auto f = static_cast<uint8_t>(factor);
    for (size_t i = 0; i < from.size(); ++i) plain[i] = fast[i] = static_cast<std::byte>(i * 7 + 3);
    gf_add_plain(plain, from, f);
    gf_add(fast, from, f);
    CHECK(plain == fast);
    gf_scale(scaled, from, f);
    bool right = true;
    for (size_t i = 0; i < from.size(); ++i) {
      right = right && scaled[i] == static_cast<std::byte>(gf_multiply(f, static_cast<uint8_t>(i)));
      right = right && (plain[i] ^ scaled[i]) == static_cast<std::byte>(i * 7 + 3);
    }
    CHECK(right);
  }
  CHECK_FALSE(gf_invert({{1, 1}, {1, 1}}));
}
