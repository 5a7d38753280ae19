// Pipes and named pipes: what the manifest says of them.
#pragma once

#include <cstdint>

namespace ckpt::store {

struct Pipe {
  uint64_t capacity = 65536;       ///< F_GETPIPE_SZ
  uint64_t content_offset = 0, content_size = 0;
  bool operator==(const Pipe&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<Pipe> p) {
  a.number("capacity", p.capacity);
  a.number("content_offset", p.content_offset);
  a.number("content_size", p.content_size);
}

}  // namespace ckpt::store
