#include <time.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/safe_point_word.h"
#include "lib/flash/client/ckpt_safe_point.h"

namespace {

using ckpt::SafePointWord;

/// In the library's own writable memory, where a ckpt looks for the magic. Not zero, so that it lies among the data.
SafePointWord g_word{"ckpt safe point", ckpt::kSafePointVersion};

/// A fork's child begins anew.
void begin_word() {
  const auto pid = static_cast<uint32_t>(::getpid());
  if (__atomic_load_n(&g_word.pid, __ATOMIC_SEQ_CST) == pid) return;
  __atomic_store_n(&g_word.pid, 0u, __ATOMIC_SEQ_CST);
  __atomic_store_n(&g_word.target, uint64_t{0}, __ATOMIC_SEQ_CST);
  __atomic_store_n(&g_word.waits_at, uint64_t{0}, __ATOMIC_SEQ_CST);
  __atomic_store_n(&g_word.calls, uint64_t{0}, __ATOMIC_SEQ_CST);
  __atomic_store_n(&g_word.pid, pid, __ATOMIC_SEQ_CST);
}

}  // namespace

extern "C" int ckpt_safe_point(void) {
  begin_word();
  const uint64_t call = ckpt::come_to_safe_point(g_word);
  if (!ckpt::is_to_wait(g_word, call)) return 0;
  ckpt::say_waits(g_word, call);
  uint64_t heartbeat = 0, heard_us = 0;
  while (ckpt::is_to_wait(g_word, call)) {
    const uint64_t now = __atomic_load_n(&g_word.heartbeat, __ATOMIC_SEQ_CST), now_us = ckpt::monotonic_us();
    if (heard_us == 0 || now != heartbeat) heartbeat = now, heard_us = now_us;
    if (now_us - heard_us > ckpt::kSafePointPatienceMs * 1000) {
      ckpt::forget_target(g_word, call);
      break;
    }
    const timespec nap{0, 500'000};
    ::nanosleep(&nap, nullptr);
  }
  ckpt::say_waits(g_word, 0);
  return 1;
}
