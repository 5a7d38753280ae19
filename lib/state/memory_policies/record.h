// NUMA memory policies: what the manifest says of them.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::store {

/// set_mempolicy(2), mbind(2).
struct MemoryPolicy {
  int mode = 0;  ///< MPOL_*, flags (MPOL_F_STATIC_NODES and its kin) included; 0: none of its own
  std::vector<int> nodes;
  bool operator==(const MemoryPolicy&) const = default;
};

/// The policy of the mapping that starts there.
struct MappingPolicy {
  uint64_t start = 0;
  MemoryPolicy policy;
  bool operator==(const MappingPolicy&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<MemoryPolicy> p) {
  a.number("mode", p.mode, 0, 0xffff);
  a.numbers("nodes", p.nodes);
}

template <class A>
void describe(A& a, typename A::template Of<MappingPolicy> p) {
  a.hex("start", p.start);
  a.number("mode", p.policy.mode, 0, 0xffff);
  a.numbers("nodes", p.policy.nodes);
}

}  // namespace ckpt::store
