// What a program and a ckpt say to each other about safe points: a word in the program's own memory, which the library
// (lib/flash/client/safe_point.cpp) reads and ckpt writes from outside. What both do with it is here, one access at a
// time, so that a test can try all orders.
#pragma once

#include <cstdint>
#include <cstring>

namespace ckpt {

inline constexpr char kSafePointMagic[16] = "ckpt safe point";
inline constexpr uint32_t kSafePointVersion = 1;

/// Its layout is what libraries and ckpts of different versions have in common.
struct alignas(64) SafePointWord {
  char magic[16] = {};      ///< once the library is loaded: `pid` says that the program has come to a safe point
  uint32_t version = 0;
  uint32_t pid = 0;         ///< as the process sees itself: a child that has come to none yet has its parent's word
  uint64_t calls = 0;       ///< safe points come to, by the program
  uint64_t target = 0;      ///< by ckpt: the safe point, counted so, at which to wait, or at a later one; 0: none
  uint64_t heartbeat = 0;   ///< by ckpt, which changes it while it wants the program to wait
  uint64_t waits_at = 0;    ///< by the program: the safe point at which it waits; 0: it does not
};
static_assert(sizeof(SafePointWord) == 64);

/// How long a program waits for a ckpt that has not changed the heartbeat, and how often a ckpt changes it.
inline constexpr uint64_t kSafePointPatienceMs = 2'000, kSafePointBeatMs = 100;

/// Of the program: it has come to a safe point. Its number, from 1.
inline uint64_t come_to_safe_point(SafePointWord& word) {
  return __atomic_add_fetch(&word.calls, 1, __ATOMIC_SEQ_CST);
}
/// Of the program: whether ckpt wants it to wait at number `call`. It looks only after it has said that it came.
inline bool is_to_wait(const SafePointWord& word, uint64_t call) {
  const uint64_t target = __atomic_load_n(&word.target, __ATOMIC_SEQ_CST);
  return target != 0 && call >= target;
}
/// Of the program, which waits at `call`: the ckpt that wanted it has ended. What another one has written since stays.
inline void forget_target(SafePointWord& word, uint64_t call) {
  uint64_t target = __atomic_load_n(&word.target, __ATOMIC_SEQ_CST);
  if (target > call) return;
  __atomic_compare_exchange_n(&word.target, &target, uint64_t{0}, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
inline void say_waits(SafePointWord& word, uint64_t call) { __atomic_store_n(&word.waits_at, call, __ATOMIC_SEQ_CST); }

/// Of ckpt, after it has written `target`, from a look at `calls` that it took after that: the program has not come
/// there before, and will see it when it does.
inline bool is_in_time(uint64_t calls, uint64_t target) { return calls < target; }

}  // namespace ckpt
