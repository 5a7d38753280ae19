// Native AIO contexts (io_setup) in which nothing is in flight: what the manifest says of them.
#pragma once

#include <cstdint>

namespace ckpt::store {

/// The kernel tells a context by the address of its ring, which is a mapping of kind kAio.
struct AioContext {
  int process = 0;        ///< index into TreeImage::processes
  uint64_t start = 0;     ///< of the mapping
  uint32_t events = 0;    ///< that the ring holds
  uint32_t requests = 0;  ///< that io_setup was asked for
  uint64_t content_offset = 0, content_size = 0;  ///< the whole ring, but for its place in the kernel's table
  bool operator==(const AioContext&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<AioContext> c) {
  a.number("process", c.process, 0);
  a.hex("start", c.start);
  a.number("events", c.events);
  a.number("requests", c.requests);
  a.number("content_offset", c.content_offset);
  a.number("content_size", c.content_size);
}

}  // namespace ckpt::store
