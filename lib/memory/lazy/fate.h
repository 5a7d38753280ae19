// What becomes of a lazy-pages daemon, in memory that is shared with whoever has to know.
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt::restore {

/// Each word is 0 until it is so.
struct LazyPagesFate {
  std::atomic<uint32_t> begun{0};     ///< it was made
  std::atomic<uint32_t> finished{0};  ///< all that was missing is in
  std::atomic<uint32_t> failed{0};    ///< not all of it ever will be
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace ckpt::restore
