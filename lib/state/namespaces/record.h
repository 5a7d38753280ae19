// The namespaces that a tree has of its own: what the manifest says of them.
#pragma once

#include <array>
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

/// A namespace that processes of the tree are in and its first process is not: a container in the container, a service
/// with folders of its own. It belongs to the user namespace that all of them are in.
struct FurtherNamespace {
  std::string kind;                  ///< as /proc/PID/ns has it: one of kFurtherKinds
  int parent = -1;                   ///< of a "pid": the one that it lies in, an index; -1: that of the first process
  std::string hostname, domainname;  ///< of a "uts"
  std::vector<KernelSetting> ipc_limits;  ///< of an "ipc", which has no objects
  Network network;                        ///< of a "net"
  Mounts mounts;  ///< of a "mnt"; of a file system that one before it has, too, that one has the files
  bool operator==(const FurtherNamespace&) const = default;
};
inline constexpr std::array<const char*, 5> kFurtherKinds = {"mnt", "uts", "ipc", "net", "pid"};
inline constexpr int kMostPidLevels = 32;  ///< MAX_PID_NS_LEVEL: as deep as the kernel has them

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
  std::vector<FurtherNamespace> further;  ///< ProcessImage::namespaces says whose
  bool has(const std::string& kind) const {
    for (const std::string& one : own) {
      if (one == kind) return true;
    }
    return false;
  }
  bool operator==(const Namespaces&) const = default;
};

/// The file systems of all mount namespaces.
template <class N>
auto filesystems_of(N& namespaces) {
  std::vector<decltype(namespaces.mounts.filesystems.data())> out;
  auto add = [&](auto& mounts) {
    for (auto& filesystem : mounts.filesystems) out.push_back(&filesystem);
  };
  add(namespaces.mounts);
  for (auto& further : namespaces.further) add(further.mounts);
  return out;
}

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
void describe(A& a, typename A::template Of<FurtherNamespace> f) {
  a.text("kind", f.kind);
  a.optional().number("parent", f.parent, -1);
  a.text("hostname", f.hostname);
  a.text("domainname", f.domainname);
  a.list("ipc_limits", f.ipc_limits);
  a.object("network", f.network);
  a.object("mounts", f.mounts);
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
  a.optional().list("further", n.further);
}

}  // namespace ckpt::store
