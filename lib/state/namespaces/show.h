// How the namespaces of a tree are shown.
#pragma once

#include <string>

#include "lib/state/namespaces/record.h"

namespace ckpt::state {

/// "pid, mnt, uts (hostname web)"; empty: none of its own.
inline std::string show(const store::Namespaces& namespaces) {
  std::string out;
  for (const std::string& kind : namespaces.own) {
    out += (out.empty() ? "" : ", ") + kind;
    if (kind == "uts") out += " (hostname " + namespaces.hostname + ")";
  }
  return out;
}

}  // namespace ckpt::state
