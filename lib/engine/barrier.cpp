#include "lib/engine/barrier.h"

#include <algorithm>

namespace ckpt::engine {

uint64_t choose_target(const std::vector<BarrierReport>& need, unsigned round) {
  uint64_t highest = 0;
  for (const BarrierReport& report : need) highest = std::max(highest, report.highest);
  return highest + (uint64_t{1} << round);
}

bool is_agreed(const std::vector<BarrierReport>& ack) {
  return std::all_of(ack.begin(), ack.end(), [](const BarrierReport& report) { return report.in_time; });
}

}  // namespace ckpt::engine
