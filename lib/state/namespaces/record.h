// The namespaces that a tree has of its own: what the manifest says of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/state/cgroups/record.h"
#include "lib/state/mounts/record.h"
#include "lib/state/network/record.h"

namespace ckpt::store {

/// What the processes would have read at the time of the dump; they are never set back.
struct Clocks {
  int64_t monotonic_ns = 0, boottime_ns = 0;
  bool operator==(const Clocks&) const = default;
};

/// A line of /proc/PID/uid_map, as read from ckpt's user namespace.
struct IdRange {
  uint32_t inside = 0, outside = 0, count = 0;
  bool operator==(const IdRange&) const = default;
};

/// A user namespace whose parent is the one that ckpt was in. All ids of the image are those that ckpt sees; the
/// capabilities of its threads are of this namespace.
struct UserNamespace {
  std::vector<IdRange> uids, gids;
  bool denies_setgroups = false;
  uint32_t owner = 0;             ///< user id: whose processes outside have all capabilities inside
  std::vector<std::string> owns;  ///< kinds of the tree's own namespaces that belong to it, not to ckpt's
  bool operator==(const UserNamespace&) const = default;
};

/// Of a tree that is where ckpt is: nothing.
struct Namespaces {
  std::vector<std::string> own;      ///< kinds, as /proc/PID/ns has them: others than those of whoever ran ckpt
  std::string hostname, domainname;  ///< of an own "uts"
  std::vector<KernelSetting> ipc_limits;  ///< of an own "ipc": those that are not as in a new namespace
  Clocks clocks;                          ///< of an own "time"
  Network network;
  std::vector<Cgroup> cgroup_roots;  ///< of an own "cgroup": the groups that are "/" there; images of before: none
  UserNamespace user;                ///< of an own "user"
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
void describe(A& a, typename A::template Of<IdRange> r) {
  a.number("inside", r.inside);
  a.number("outside", r.outside);
  a.number("count", r.count);
}

template <class A>
void describe(A& a, typename A::template Of<UserNamespace> u) {
  a.list("uids", u.uids);
  a.list("gids", u.gids);
  a.flag("denies_setgroups", u.denies_setgroups);
  a.number("owner", u.owner);
  a.texts("owns", u.owns);
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
  a.optional().list("cgroup_roots", n.cgroup_roots);
  a.optional().object("user", n.user);
}

}  // namespace ckpt::store
