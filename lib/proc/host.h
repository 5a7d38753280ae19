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

/// CAP_* number held in the effective set: over what belongs to ckpt's own user namespace.
bool has_capability(int capability);
/// Over what the kernel asks of the first user namespace alone (capable() in its source), too.
bool has_capability_everywhere(int capability);
/// Over ckpt's pid namespace, which may belong to a user namespace outside of ckpt's own (unshare -Ur): numbers of
/// processes are chosen with these.
bool has_capability_over_pids(int capability);

}  // namespace ckpt::proc
