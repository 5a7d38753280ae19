// /proc/PID/mountinfo.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::capture {

struct MountLine {
  int id = 0, parent = 0;
  uint64_t device = 0;
  std::string root, point, options;
  bool shared = false, slave = false;
  std::string type, source, super_options;
};

/// kIo: not in the kernel's form.
Result<std::vector<MountLine>> parse_mountinfo(std::string_view text);

}  // namespace ckpt::capture
