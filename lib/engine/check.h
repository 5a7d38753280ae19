// check: what this host offers, and what in a process stands in the way of a dump. Nothing is stopped or touched.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/capture/inventory.h"
#include "lib/engine/device_hold.h"

namespace ckpt::engine {

struct Feature {
  std::string name;
  bool present = false;
  std::string serves;  ///< what it is for, and what happens without it
};

struct CheckReport {
  std::vector<Feature> host;
  std::vector<int> gpu_processes;  ///< those whose GPU state the driver would checkpoint
  std::string process;  ///< "4711 (python3)"; empty when only the host was asked for
  std::vector<capture::Blocker> blockers;
};

/// Whether this process may give processes their numbers back.
bool may_restore();

/// pid 0: the host alone. `shell_job` as for dump. kNotFound: no such process; kPermission: another user's.
Result<CheckReport> check(int pid, bool shell_job, const capture::SocketOptions& sockets, const GpuOptions& gpu);

}  // namespace ckpt::engine
