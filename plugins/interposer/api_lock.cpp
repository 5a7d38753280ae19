#include "plugins/interposer/api_lock.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <new>

namespace ckpt::interposer {

ApiLock g_api_lock;
thread_local ThreadState* t_state = nullptr;

namespace {

std::atomic<ThreadState*> g_threads{nullptr};

void give_back(void* place) {
  auto* self = static_cast<ThreadState*>(place);
  t_state = nullptr;
  self->inside.store(0, std::memory_order_relaxed);
  self->taken.store(0, std::memory_order_release);
}

pthread_key_t key() {
  static const pthread_key_t made = [] {
    pthread_key_t fresh;
    pthread_key_create(&fresh, give_back);
    return fresh;
  }();
  return made;
}

void wait_while(uint32_t state) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_api_lock.state), FUTEX_WAIT_PRIVATE, state, nullptr, nullptr, 0);
}

/// Makes what every thread has stored visible. Registered each time: a restored process has lost its registration.
bool barrier() {
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
         syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

bool anybody_inside() {
  for (ThreadState* p = g_threads.load(std::memory_order_acquire); p != nullptr; p = p->next) {
    if (p->inside.load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

}  // namespace

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ull + now.tv_nsec;
}

ThreadState* new_thread_state() {
  for (ThreadState* p = g_threads.load(std::memory_order_acquire); p != nullptr && t_state == nullptr; p = p->next) {
    uint32_t nobody = 0;
    if (p->taken.compare_exchange_strong(nobody, 1)) t_state = p;
  }
  if (t_state == nullptr) {
    auto* fresh = new ThreadState;
    fresh->next = g_threads.load(std::memory_order_relaxed);
    while (!g_threads.compare_exchange_weak(fresh->next, fresh)) {
    }
    t_state = fresh;
  }
  pthread_setspecific(key(), t_state);
  return t_state;
}

bool enter_slowly(ThreadState* self) {
  while (true) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const uint32_t state = g_api_lock.state.load(std::memory_order_seq_cst);
    if ((state & kClosed) == 0) return (state & kWatched) != 0;
    self->inside.store(0, std::memory_order_release);
    const int kept = errno;
    wait_while(state);
    errno = kept;
    self->inside.store(1, std::memory_order_relaxed);
  }
}

bool resume(ThreadState* self) {
  self->inside.store(1, std::memory_order_relaxed);
  return enter_slowly(self);
}

bool lock_api(uint64_t deadline_ns, GiveUp give_up) {
  g_api_lock.state.fetch_or(kClosed);
  if (!barrier()) {
    // Those that pass without a fence now are gone after a pause that no store buffer outlives.
    g_api_lock.state.fetch_or(kFenced);
    usleep(10'000);
  }
  while (anybody_inside()) {
    if (now_ns() > deadline_ns || give_up()) {
      unlock_api();
      return false;
    }
    usleep(20);
  }
  return true;
}

void unlock_api() {
  g_api_lock.state.fetch_and(~kClosed);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_api_lock.state), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool api_locked() { return (g_api_lock.state.load() & kClosed) != 0; }

void watch_api_lock(bool on) {
  if (on) {
    g_api_lock.state.fetch_or(kWatched);
  } else {
    g_api_lock.state.fetch_and(~kWatched);
  }
  // Waiters compare the whole word.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&g_api_lock.state), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void reset_api_lock_after_fork() {
  g_api_lock.state.store(0);
  for (ThreadState* p = g_threads.load(); p != nullptr; p = p->next) {
    if (p == t_state) continue;
    p->inside.store(0);
    p->taken.store(0);
  }
}

}  // namespace ckpt::interposer
