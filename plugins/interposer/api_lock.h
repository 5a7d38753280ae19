// The API lock: a lock on the part of the driver API that changes device memory. While nobody holds it, a call costs
// two stores to a line of the thread's own and one load of a line that nobody writes. Who takes it pays: membarrier(2)
// makes every running thread's store visible, so that each thread has either seen the API locked or is seen inside.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ckpt::interposer {

inline constexpr uint32_t kClosed = 1;  ///< callers wait
inline constexpr uint32_t kFenced = 2;  ///< no membarrier here: each passage has a fence of its own
inline constexpr uint32_t kWatched = 4; ///< what passes is looked at first (watch.h)

struct alignas(64) ApiLock {
  std::atomic<uint32_t> state{0};
};
extern ApiLock g_api_lock;

/// A thread's place: in a list that only grows; reused when its thread has ended.
struct alignas(64) ThreadState {
  std::atomic<uint32_t> inside{0};  ///< how deep; written by its thread alone
  std::atomic<uint32_t> taken{1};
  ThreadState* next = nullptr;
};
extern thread_local ThreadState* t_state;
ThreadState* new_thread_state();

/// Waits while the API is locked. True: the call is to be looked at.
bool enter_slowly(ThreadState* self);

/// Leave with `leave`. A call from inside another one (a signal handler's) passes: the outer one could not end
/// otherwise. `watched`: the call is to be looked at before it goes on.
inline ThreadState* enter(bool& watched) {
  ThreadState* self = t_state;
  if (self == nullptr) [[unlikely]]
    self = new_thread_state();
  const uint32_t depth = self->inside.load(std::memory_order_relaxed);
  self->inside.store(depth + 1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  watched = false;
  if (g_api_lock.state.load(std::memory_order_acquire) != 0 && depth == 0) [[unlikely]] watched = enter_slowly(self);
  return self;
}
inline void leave(ThreadState* self) {
  self->inside.store(self->inside.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}
/// For a thread that waits for something of ours: not inside meanwhile. `resume` waits while the API is locked.
inline void step_out(ThreadState* self) { self->inside.store(0, std::memory_order_release); }
bool resume(ThreadState* self);

/// In the scope of a wrapper that is written out.
class Passage {
 public:
  Passage() { self_ = enter(watched_); }
  ~Passage() { leave(self_); }
  Passage(const Passage&) = delete;
  bool watched() const { return watched_; }
  ThreadState* self() const { return self_; }

 private:
  bool watched_ = false;
  ThreadState* self_;
};

/// Asked while something is waited for: true gives it up.
using GiveUp = bool (*)();

/// False: some thread was still inside at the deadline (CLOCK_MONOTONIC, ns), or it was given up; the API is unlocked
/// again.
bool lock_api(uint64_t deadline_ns, GiveUp give_up);
void unlock_api();
bool api_locked();
void watch_api_lock(bool on);
/// In the child of a fork: no other thread is there, the API is unlocked.
void reset_api_lock_after_fork();

uint64_t now_ns();

}  // namespace ckpt::interposer
