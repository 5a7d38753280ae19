// What becomes of a process that outlives its maker, in memory that both share with whoever has to know.
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt {

/// Each word is 0 until it is so.
struct TaskFate {
  std::atomic<uint32_t> begun{0};     ///< it was made
  std::atomic<uint32_t> finished{0};  ///< all that it was to do is done
  std::atomic<uint32_t> failed{0};    ///< not all of it ever will be
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace ckpt
