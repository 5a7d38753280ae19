// What the user says of mounts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::state {

/// Of a dump: the mounts that whoever restores it gives.
struct ExternalMounts {
  std::map<std::string, std::string> keys;  ///< by mount point: the key that a restore names it by
  bool may_match_nothing = false;           ///< as criu has it; else a name that is no mount is refused
};

/// Of a restore that makes a mount namespace.
struct MountOptions {
  std::string root;                             ///< the folder that becomes its root; empty: the one that it was
  std::map<std::string, std::string> external;  ///< by key, or by mount point: the folder or file to mount
  bool may_match_nothing = false;               ///< as for a dump
  bool dry_run = false;                         ///< overlays are only read: nothing writes to their folders
};

/// Each "mnt[KEY]:VALUE", as criu has it. kUsage: something else, or two for one key.
Result<std::map<std::string, std::string>> parse_external_mounts(const std::vector<std::string>& texts);

}  // namespace ckpt::state
