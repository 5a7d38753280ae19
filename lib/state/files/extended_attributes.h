// Extended attributes (xattr(7)) of what a restore makes anew: deleted files and folders, memfds.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/files/record.h"

namespace ckpt::state {

/// Those of users and access control lists; labels of security modules are left to the host. `path` is one of /proc
/// that leads to the file. kUnsupported: it has capabilities (security.capability) or a trusted one.
Result<std::vector<store::ExtendedAttribute>> read_extended_attributes(const std::string& path);

/// Of a new file, whose mode is set. kCorrupt: one of a name that an image may not claim.
Result<void> set_extended_attributes(int fd, const std::vector<store::ExtendedAttribute>& attributes,
                                     const std::string& subject);

}  // namespace ckpt::state
