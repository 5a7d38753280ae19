#include "lib/flash/client/fork_gate.h"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

namespace ckpt::flash {

namespace {

std::mutex g_forking;  ///< held through a fork
std::atomic<uint32_t> g_holders{0};

void before_fork() {
  for (;;) {
    g_forking.lock();
    const uint32_t holders = g_holders.load();
    if (holders == 0) return;
    g_forking.unlock();
    g_holders.wait(holders);
  }
}

void after_fork() { g_forking.unlock(); }

/// When the library is loaded: a fork that is under way holds the lock of the list of handlers. It fails for want of
/// memory alone; then forks do not wait.
[[maybe_unused]] const int g_registered = ::pthread_atfork(before_fork, after_fork, after_fork);

}  // namespace

NoForks::NoForks() {
  const std::lock_guard lock(g_forking);
  ++g_holders;
}

void NoForks::end() {
  if (std::exchange(ended_, true)) return;
  if (g_holders.fetch_sub(1) == 1) g_holders.notify_all();
}

}  // namespace ckpt::flash
