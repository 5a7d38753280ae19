#include "lib/state/threads/clamps.h"

#include <sched.h>

#include <cstdlib>

#include "lib/base/io.h"

namespace ckpt::capture {

namespace {

constexpr uint32_t kWhole = 1024;

std::optional<UsualClamps> read_usual_clamps() {
  auto text = io::read_file("/proc/sys/kernel/sched_util_clamp_min_rt_default", 64);
  if (!text) return std::nullopt;
  return UsualClamps{static_cast<uint32_t>(std::strtoul(text->c_str(), nullptr, 10))};
}

}  // namespace

std::optional<UsualClamps> usual_clamps() {
  static const std::optional<UsualClamps> usual = read_usual_clamps();
  return usual;
}

Clamps chosen_clamps(const SchedulingAttributes& read, const std::optional<UsualClamps>& usual) {
  if (!usual || read.util_min > kWhole || read.util_max > kWhole) return {};
  const bool is_realtime = read.policy == SCHED_FIFO || read.policy == SCHED_RR;
  Clamps out;
  if (read.util_min != (is_realtime ? usual->min_of_realtime : 0)) out.min = static_cast<int>(read.util_min);
  if (read.util_max != kWhole) out.max = static_cast<int>(read.util_max);
  return out;
}

}  // namespace ckpt::capture
