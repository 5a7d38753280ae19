// The namespaces that a tree has of its own: what the manifest says of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/state/mounts/record.h"

namespace ckpt::store {

/// A file below /proc/sys.
struct NetworkSetting {
  std::string path, value;
  bool operator==(const NetworkSetting&) const = default;
};

/// Of an own "net".
struct Network {
  bool loopback_up = false;
  std::vector<NetworkSetting> settings;  ///< those that are not as in a new namespace
  std::vector<std::string> beyond;       ///< what else is there, in words: it does not go with the image
  bool operator==(const Network&) const = default;
};

/// Of a tree that is where ckpt is: nothing.
struct Namespaces {
  std::vector<std::string> own;      ///< kinds, as /proc/PID/ns has them: others than those of whoever ran ckpt
  std::string hostname, domainname;  ///< of an own "uts"
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
void describe(A& a, typename A::template Of<NetworkSetting> s) {
  a.text("path", s.path);
  a.text("value", s.value);
}

template <class A>
void describe(A& a, typename A::template Of<Network> n) {
  a.flag("loopback_up", n.loopback_up);
  a.list("settings", n.settings);
  a.texts("beyond", n.beyond);
}

template <class A>
void describe(A& a, typename A::template Of<Namespaces> n) {
  a.texts("own", n.own);
  a.text("hostname", n.hostname);
  a.text("domainname", n.domainname);
  a.optional().object("network", n.network);
  a.optional().object("mounts", n.mounts);
}

}  // namespace ckpt::store
