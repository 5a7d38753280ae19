// What the user says of mounts.
#pragma once

#include <map>
#include <string>

#include "lib/base/result.h"

namespace ckpt::state {

/// Of a dump: the mounts that whoever restores it gives. By mount point: the key that a restore names them by.
using ExternalMounts = std::map<std::string, std::string>;

/// Of a restore that makes a mount namespace.
struct MountOptions {
  std::string root;                             ///< the folder that becomes its root; empty: the one that it was
  std::map<std::string, std::string> external;  ///< by key, or by mount point: the folder or file to mount
};

/// "mnt[KEY]:VALUE", as criu has it. kUsage: something else.
Result<std::pair<std::string, std::string>> parse_external_mount(const std::string& text);

}  // namespace ckpt::state
