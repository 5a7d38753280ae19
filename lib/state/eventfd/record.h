// Eventfds: what the manifest says of them.
#pragma once

#include <cstdint>

namespace ckpt::store {

struct Eventfd {
  uint64_t count = 0;
  bool semaphore = false;  ///< EFD_SEMAPHORE
  bool operator==(const Eventfd&) const = default;
};

/// Members of a descriptor.
template <class A>
void describe(A& a, typename A::template Of<Eventfd> e) {
  a.number("eventfd_count", e.count);
  a.flag("eventfd_semaphore", e.semaphore);
}

}  // namespace ckpt::store
