// Threads of this library's own in the program.
#pragma once

#include <cstddef>

namespace ckpt::interposer {

/// Detached, with all signals blocked: those are the program's. `stack`: bytes, 0: as the program's threads have it.
/// `name`: null for one that may end at once. False: there can be no thread.
bool start_thread(void* (*run)(void*), size_t stack, const char* name);

}  // namespace ckpt::interposer
