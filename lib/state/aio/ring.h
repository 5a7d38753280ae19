// What lies at the begin of an AIO context's ring (struct aio_ring in fs/aio.c), events of 32 bytes after it.
#pragma once

#include <linux/aio_abi.h>

#include <cstdint>

namespace ckpt::state {

struct AioRing {
  uint32_t id = 0;  ///< place in the kernel's table
  uint32_t events = 0;
  uint32_t head = 0, tail = 0;  ///< numbers of events, below `events`
  uint32_t magic = 0, compatible = 0, incompatible = 0, header_size = 0;

  /// What the kernel has put there and nobody has taken.
  uint32_t unread() const { return tail >= head ? tail - head : events - head + tail; }
  bool is_sound() const {
    constexpr uint32_t kMagic = 0xa10a10a1;
    return magic == kMagic && incompatible == 0 && header_size == sizeof(AioRing) && head < events && tail < events;
  }
};
static_assert(sizeof(AioRing) == sizeof(io_event));

/// Of a ring of that many bytes, whole pages.
constexpr uint64_t aio_events_in(uint64_t size) { return (size - sizeof(AioRing)) / sizeof(io_event); }

}  // namespace ckpt::state
