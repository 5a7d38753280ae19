// Durations as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lib/base/result.h"

namespace ckpt {

/// Microseconds of "30s", "1.5h", "1h30m", "200ms", "50d", "2w"; a number without a unit is seconds. Units: us, ms, s,
/// m, h, d, w. kUsage names `subject` where it is none, is negative, or is more than a thousand years.
Result<uint64_t> parse_duration(std::string_view text, const std::string& subject);

/// Three significant digits up to a minute, whole units above: "65.6s", "23m37s", "3h", "2d4h". parse_duration reads
/// it.
std::string format_duration(uint64_t us);

}  // namespace ckpt
