// Control groups: what the manifest says of them.
#pragma once

#include <string>

namespace ckpt::store {

/// One line of /proc/PID/cgroup.
struct Cgroup {
  std::string controllers;  ///< "" of version 2; "cpu,cpuacct", "name=systemd" of version 1
  std::string path;         ///< within the hierarchy, as seen by ckpt
  bool operator==(const Cgroup&) const = default;
};

template <class A>
void describe(A& a, typename A::template Of<Cgroup> c) {
  a.text("controllers", c.controllers);
  a.text("path", c.path);
}

}  // namespace ckpt::store
