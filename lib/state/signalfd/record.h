// Signalfds: what the manifest says of them.
#pragma once

#include <cstdint>

namespace ckpt::store {

struct Signalfd {
  uint64_t mask = 0;  ///< the kernel's set: bit 0 is signal 1
  bool operator==(const Signalfd&) const = default;
};

/// Members of a descriptor.
template <class A>
void describe(A& a, typename A::template Of<Signalfd> s) {
  a.hex("signalfd_mask", s.mask);
}

}  // namespace ckpt::store
