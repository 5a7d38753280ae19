// How much of a processor a thread is taken to use (utilisation clamps, sched(7)): what of it the thread chose.
#pragma once

#include <cstdint>
#include <optional>

namespace ckpt::capture {

/// struct sched_attr of linux/sched/types.h, whose sched_param clashes with the C library's.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
  uint32_t util_min, util_max;
};
static_assert(sizeof(SchedulingAttributes) == 56);

/// Of 1024; -1: left to the kernel.
struct Clamps {
  int min = -1, max = -1;
  bool operator==(const Clamps&) const = default;
};

/// What sched_getattr tells of a thread that chose nothing. Nothing: this kernel has no clamps
/// (CONFIG_UCLAMP_TASK), and tells zeros.
struct UsualClamps {
  uint32_t min_of_realtime = 1024;  ///< kernel.sched_util_clamp_min_rt_default; of others 0
};
std::optional<UsualClamps> usual_clamps();

/// By what sched_getattr told of a thread. One that chose what is usual is as one that chose nothing.
Clamps chosen_clamps(const SchedulingAttributes& read, const std::optional<UsualClamps>& usual);

}  // namespace ckpt::capture
