// check: what this host offers, and what in a process stands in the way of a dump. Nothing is stopped or touched.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/engine/device_hold.h"
#include "lib/engine/gpu_processes.h"
#include "lib/engine/gpu_room.h"
#include "lib/state/external/options.h"
#include "lib/state/inventory.h"

namespace ckpt::engine {

/// Something of the host that a verb uses.
struct Feature {
  std::string verb;    ///< "dump" stands for pre-dump, too
  std::string name;
  bool present = false;
  bool required = false;  ///< without it the verb does nothing at all here
  std::string serves;     ///< what it is for, and what happens without it
  std::string detail;     ///< a version, or why it is missing
};

struct CheckReport {
  std::vector<Feature> host;
  std::vector<int> gpu_processes;  ///< those whose GPU state the driver would checkpoint
  std::vector<GpuProcess> gpu;     ///< all with GPU state, suspended ones among them
  std::vector<HostRoom> host_room;  ///< for what a dump would move there
  std::string process;  ///< "4711 (python3)"; empty when only the host was asked for
  std::vector<capture::Blocker> blockers;
  std::vector<std::string> notes;  ///< what a person should know, no obstacle
};

/// Whether this process may give processes their numbers back.
bool may_restore();
/// What stands against it where it may not, and what would do.
std::string why_not_restored();

/// What dump, restore and suspend use of this host, by verb. Each is tried where that leaves no trace.
std::vector<Feature> host_features(const GpuOptions& gpu);

/// kNotFound: no such process; kPermission: it belongs to another user, and this one may not look into it.
Result<void> check_process(int pid);

/// pid 0: the host alone. `external` and `sockets` as for dump. kNotFound: no such process; kPermission: another
/// user's.
Result<CheckReport> check(int pid, const state::ExternalOptions& external, const capture::SocketOptions& sockets,
                          const GpuOptions& gpu);

}  // namespace ckpt::engine
