// Threads of this library's own in the program.
#pragma once

#include <cstddef>

namespace ckpt::interposer {

/// Detached, with all signals blocked: those are the program's. `stack`: bytes, 0: as the program's threads have it;
/// more where that has no room for the thread-local variables of all libraries. `name`: null for one that may end at
/// once. 0, or why there can be no thread (an errno).
int start_thread(void* (*run)(void*), size_t stack, const char* name);

}  // namespace ckpt::interposer
