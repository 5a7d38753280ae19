// How the namespaces of a tree are shown.
#pragma once

#include <string>
#include <vector>

#include "lib/state/namespaces/record.h"

namespace ckpt::state {

/// Without the loopback interface, which all have.
inline std::string in_parentheses(const std::vector<store::NetworkLink>& links) {
  std::string out;
  for (const store::NetworkLink& link : links) {
    if (!link.kind.empty()) out += (out.empty() ? " (" : ", ") + link.name;
  }
  return out.empty() ? out : out + ")";
}

/// How many pid namespaces lie around it below the first process's, itself with them.
inline int level_of(const store::Namespaces& namespaces, const store::FurtherNamespace& further) {
  const std::vector<store::FurtherNamespace>& all = namespaces.further;
  int out = 1, above = further.parent;
  for (; above >= 0 && static_cast<size_t>(above) < all.size() && out <= store::kMostPidLevels; ++out)
    above = all[static_cast<size_t>(above)].parent;
  return out;
}

/// "pid, mnt, net (eth0, br0), uts (hostname web), further mnt, further pid (level 1)"; empty: none of its own.
inline std::string show(const store::Namespaces& namespaces) {
  std::string out;
  for (const std::string& kind : namespaces.own) {
    out += (out.empty() ? "" : ", ") + kind;
    if (kind == "uts") out += " (hostname " + namespaces.hostname + ")";
    if (kind == "net") out += in_parentheses(namespaces.network.links);
  }
  for (const store::FurtherNamespace& further : namespaces.further) {
    out += (out.empty() ? "further " : ", further ") + further.kind;
    if (further.kind == "pid") out += " (level " + std::to_string(level_of(namespaces, further)) + ")";
    if (further.kind == "uts") out += " (hostname " + further.hostname + ")";
    if (further.kind == "net") out += in_parentheses(further.network.links);
  }
  return out;
}

}  // namespace ckpt::state
