// The stop flag of the program as a whole, for long work that is handed none: the metadata of one large checkpoint.
#pragma once

#include "lib/base/cancel.h"

namespace ckpt {

inline std::atomic<const Cancel*> g_program_cancel{nullptr};

/// `cancel` outlives all work, or is forgotten before it ends.
inline void set_program_cancel(const Cancel& cancel) { g_program_cancel.store(&cancel, std::memory_order_relaxed); }

inline void forget_program_cancel() { g_program_cancel.store(nullptr, std::memory_order_relaxed); }

/// kInterrupted once a stop was requested.
inline Result<void> check_program_cancel() {
  const Cancel* cancel = g_program_cancel.load(std::memory_order_relaxed);
  return cancel == nullptr ? Result<void>() : cancel->check();
}

}  // namespace ckpt
