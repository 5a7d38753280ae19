// Where a process belongs: control groups, NUMA policies, memory protection keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::store {

/// One line of /proc/PID/cgroup.
struct Cgroup {
  std::string controllers;  ///< "" of version 2; "cpu,cpuacct", "name=systemd" of version 1
  std::string path;         ///< within the hierarchy, as seen by ckpt
  bool operator==(const Cgroup&) const = default;
};

/// set_mempolicy(2), mbind(2).
struct MemoryPolicy {
  int mode = 0;  ///< MPOL_*, flags (MPOL_F_STATIC_NODES and its kin) included; 0: none of its own
  std::vector<int> nodes;
  bool operator==(const MemoryPolicy&) const = default;
};

/// The policy of the mapping that starts there.
struct MappingPolicy {
  uint64_t start = 0;
  MemoryPolicy policy;
  bool operator==(const MappingPolicy&) const = default;
};

/// pkeys(7).
struct ProtectionKeys {
  uint32_t allocated = 0;  ///< bit mask, without key 0
  struct Range {
    uint64_t start = 0;  ///< of a mapping
    int key = 0;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> ranges;
  bool operator==(const ProtectionKeys&) const = default;
};

}  // namespace ckpt::store
