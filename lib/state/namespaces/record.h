// The namespaces that a tree has of its own: what the manifest says of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/state/mounts/record.h"
#include "lib/state/network/record.h"

namespace ckpt::store {

/// What the processes would have read at the time of the dump; they are never set back.
struct Clocks {
  int64_t monotonic_ns = 0, boottime_ns = 0;
  bool operator==(const Clocks&) const = default;
};

/// Of a tree that is where ckpt is: nothing.
struct Namespaces {
  std::vector<std::string> own;      ///< kinds, as /proc/PID/ns has them: others than those of whoever ran ckpt
  std::string hostname, domainname;  ///< of an own "uts"
  std::vector<KernelSetting> ipc_limits;  ///< of an own "ipc": those that are not as in a new namespace
  Clocks clocks;                          ///< of an own "time"
  Network network;
  Mounts mounts;  ///< of an own "mnt"
  bool has(const std::string& kind) const {
    for (const std::string& one : own) {
      if (one == kind) return true;
    }
    return false;
  }
  bool operator==(const Namespaces&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<Clocks> c) {
  constexpr int64_t kMost = int64_t{1} << 61;  // half of what the kernel takes
  a.number("monotonic_ns", c.monotonic_ns, 0, kMost);
  a.number("boottime_ns", c.boottime_ns, 0, kMost);
}

template <class A>
void describe(A& a, typename A::template Of<Namespaces> n) {
  a.texts("own", n.own);
  a.text("hostname", n.hostname);
  a.text("domainname", n.domainname);
  a.optional().list("ipc_limits", n.ipc_limits);
  a.optional().object("clocks", n.clocks);
  a.optional().object("network", n.network);
  a.optional().object("mounts", n.mounts);
}

}  // namespace ckpt::store
