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
/// Over ckpt's namespace of a kind ("pid", where numbers of processes are chosen; "net"), which may belong to a user
/// namespace outside of ckpt's own (unshare -Ur).
bool has_capability_over(const char* kind, int capability);
/// Whether any capability of ckpt's user namespace counts there.
bool is_within_reach(const char* kind);

}  // namespace ckpt::proc
