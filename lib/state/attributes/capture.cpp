#include "lib/state/attributes/capture.h"

#include <linux/prctl.h>
#include <sys/syscall.h>

namespace ckpt::capture {

namespace {

constexpr uint64_t kGetRegistrations = 1 << 9;  // MEMBARRIER_CMD_GET_REGISTRATIONS, Linux 6.3

}  // namespace

AttributeQuestions::AttributeQuestions(proc::CallList& calls) {
  break_ = calls.add("read its break", SYS_brk, {0});
  dumpable_ = calls.add("read its dumpable flag", SYS_prctl, {PR_GET_DUMPABLE});
  death_signal_ =
      calls.add("read its parent-death signal", SYS_prctl, {PR_GET_PDEATHSIG, 0}, sizeof(int), proc::kSecond);
  subreaper_ = calls.add("read its subreaper flag", SYS_prctl, {PR_GET_CHILD_SUBREAPER, 0}, sizeof(int), proc::kSecond);
  thp_disabled_ = calls.add("read its huge page policy", SYS_prctl, {PR_GET_THP_DISABLE});
  securebits_ = calls.add("read its securebits", SYS_prctl, {PR_GET_SECUREBITS});
  membarrier_ = calls.add("read its membarrier registrations", SYS_membarrier, {kGetRegistrations, 0, 0});
}

Result<void> AttributeQuestions::take(const proc::CallList& calls, store::ProcessImage& image) const {
  CKPT_TRY_ASSIGN(image.bounds.brk, calls.value(break_));
  CKPT_TRY_ASSIGN(uint64_t dumpable, calls.value(dumpable_));
  image.dumpable = static_cast<int>(dumpable);
  CKPT_TRY_ASSIGN(image.parent_death_signal, calls.answer<int>(death_signal_));
  CKPT_TRY_ASSIGN(int subreaper, calls.answer<int>(subreaper_));
  image.child_subreaper = subreaper != 0;
  CKPT_TRY_ASSIGN(uint64_t thp_disabled, calls.value(thp_disabled_));
  image.thp_disabled = thp_disabled != 0;
  CKPT_TRY_ASSIGN(uint64_t securebits, calls.value(securebits_));
  for (store::Thread& thread : image.threads) thread.securebits = static_cast<uint32_t>(securebits);
  if (const int64_t registered = calls.result(membarrier_); registered > 0 && image.memory_of < 0)
    image.membarrier = static_cast<uint32_t>(registered);
  return {};
}

}  // namespace ckpt::capture
