// The members of control groups, NUMA policies and protection keys in the manifest; see manifest_fields.h.
#pragma once

#include "lib/store/placement_image.h"

namespace ckpt::store {

template <class A>
void describe(A& a, typename A::template Of<Cgroup> c) {
  a.text("controllers", c.controllers);
  a.text("path", c.path);
}

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

template <class A>
void describe(A& a, typename A::template Of<ProtectionKeys> k) {
  a.number("allocated", k.allocated, 0, 0xffff);
  a.list("ranges", k.ranges, [](auto& sub, auto& range) {
    sub.hex("start", range.start);
    sub.number("key", range.key, 0, 15);
  });
}

}  // namespace ckpt::store
