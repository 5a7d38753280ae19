#include "lib/state/attributes/capture.h"

#include <linux/prctl.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>

#include "lib/proc/procfs.h"

namespace ckpt::capture {

namespace {

constexpr uint64_t kGetRegistrations = 1 << 9;  // MEMBARRIER_CMD_GET_REGISTRATIONS, Linux 6.3
constexpr uint64_t kGetMemoryMerge = 68;        // PR_GET_MEMORY_MERGE, Linux 6.4
constexpr uint64_t kExceptAdvised = 1 << 1;     // PR_THP_DISABLE_EXCEPT_ADVISED, Linux 6.18
constexpr uint64_t kGetPermittedFeatures = 0x1022, kGetUntagMask = 0x4001;  // ARCH_GET_XCOMP_PERM, ARCH_GET_UNTAG_MASK
constexpr uint64_t kTimerIds = 77, kGetTimerIds = 2;  // PR_TIMER_CREATE_RESTORE_IDS, Linux 6.15
constexpr uint64_t kFutexHash = 78, kGetSlots = 2;    // PR_FUTEX_HASH, Linux 6.16
constexpr uint64_t kTileData = 1 << 18;         // XFEATURE_XTILEDATA

}  // namespace

int chosen_futex_slots(int64_t slots, size_t threads, int processors) {
  constexpr int64_t kLeast = 16, kForEach = 4;
  const auto most = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(kForEach * processors)));
  const bool is_usual = slots == 0 ? threads == 1 : slots <= std::max(kLeast, most);
  return slots < 0 || slots > INT32_MAX || is_usual ? -1 : static_cast<int>(slots);
}

int parse_autogroup_nice(std::string_view text) {
  constexpr std::string_view kNice = " nice ";
  constexpr int kLowest = -20, kHighest = 19;
  const size_t at = text.rfind(kNice);
  if (at == std::string_view::npos) return 0;
  const std::string_view word = text.substr(at + kNice.size());
  int out = 0;
  std::from_chars(word.data(), word.data() + word.size(), out);
  return std::clamp(out, kLowest, kHighest);
}

int read_autogroup_nice(int pid) {
  auto text = proc::read_small(pid, "autogroup");
  return text ? parse_autogroup_nice(*text) : 0;
}

AttributeQuestions::AttributeQuestions(proc::CallList& calls) {
  break_ = calls.add("read its break", SYS_brk, {0});
  dumpable_ = calls.add("read its dumpable flag", SYS_prctl, {PR_GET_DUMPABLE});
  death_signal_ =
      calls.add("read its parent-death signal", SYS_prctl, {PR_GET_PDEATHSIG, 0}, sizeof(int), proc::kSecond);
  subreaper_ = calls.add("read its subreaper flag", SYS_prctl, {PR_GET_CHILD_SUBREAPER, 0}, sizeof(int), proc::kSecond);
  thp_disabled_ = calls.add("read its huge page policy", SYS_prctl, {PR_GET_THP_DISABLE});
  merge_ = calls.add("read whether its memory is merged", SYS_prctl, {kGetMemoryMerge});
  // Where the processor has no tiles, or the kernel does not know the question, there is no such leave.
  permitted_ = calls.add("read its extended registers", SYS_arch_prctl, {kGetPermittedFeatures, 0}, sizeof(uint64_t),
                         proc::kSecond);
  local_table_ = calls.add("read its local descriptor table", SYS_modify_ldt, {0, 0, 64}, 64, proc::kSecond);
  untag_mask_ = calls.add("read its address masking", SYS_arch_prctl, {kGetUntagMask, 0}, sizeof(uint64_t),
                          proc::kSecond);
  timer_ids_ = calls.add("read whether it chooses timer ids", SYS_prctl, {kTimerIds, kGetTimerIds});
  futex_slots_ = calls.add("read the size of its futex table", SYS_prctl, {kFutexHash, kGetSlots});
  membarrier_ = calls.add("read its membarrier registrations", SYS_membarrier, {kGetRegistrations, 0, 0});
}

/// What code of the x86 before 64 bits, and of processors of today, may have done to addresses.
Result<void> AttributeQuestions::refuse_odd_addresses(const proc::CallList& calls, int pid) const {
  if (calls.result(local_table_) > 0)
    return fail(Code::kUnsupported, proc::describe_pid(pid),
                "has segments of its own (modify_ldt), which is not supported");
  if (calls.result(untag_mask_) != 0) return {};
  CKPT_TRY_ASSIGN(const uint64_t mask, calls.answer<uint64_t>(untag_mask_));
  if (mask == ~uint64_t{0}) return {};
  return fail(Code::kUnsupported, proc::describe_pid(pid),
              "has its addresses masked by the processor (ARCH_ENABLE_TAGGED_ADDR), which is not supported");
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
  image.thp_except_advised = (thp_disabled & kExceptAdvised) != 0;
  image.memory_merge = calls.result(merge_) == 1;
  if (calls.result(permitted_) == 0) {
    CKPT_TRY_ASSIGN(const uint64_t permitted, calls.answer<uint64_t>(permitted_));
    image.amx_tiles = (permitted & kTileData) != 0;
  }
  image.restores_timer_ids = calls.result(timer_ids_) == 1;
  image.futex_slots = chosen_futex_slots(calls.result(futex_slots_), image.threads.size(), ::get_nprocs());
  CKPT_TRY(refuse_odd_addresses(calls, image.pid));
  if (const int64_t registered = calls.result(membarrier_); registered > 0 && image.memory_of < 0)
    image.membarrier = static_cast<uint32_t>(registered);
  return {};
}

}  // namespace ckpt::capture
