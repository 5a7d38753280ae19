// The machine: what an image depends on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

struct Host {
  std::string hostname, kernel, machine;
  std::string boot_id;
  std::string cpu_model;
  std::vector<std::string> cpu_flags;  ///< of /proc/cpuinfo's first processor
  uint64_t xcr0 = 0;                   ///< XGETBV(0): the extended state that the system saves
};
Result<Host> read_host();

/// CAP_* number held in the effective set.
bool has_capability(int capability);

}  // namespace ckpt::proc
