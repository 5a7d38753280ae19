// Resource limits: what the manifest says of them.
#pragma once

#include <cstdint>

namespace ckpt::store {

struct ResourceLimit {
  int resource = 0;                ///< RLIMIT_*
  uint64_t soft = 0, hard = 0;     ///< ~0: unlimited
  bool operator==(const ResourceLimit&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<ResourceLimit> l) {
  a.number("resource", l.resource, 0, 64);
  a.number("soft", l.soft);
  a.number("hard", l.hard);
}

}  // namespace ckpt::store
