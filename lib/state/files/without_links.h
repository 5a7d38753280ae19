// Paths that another user may have changed: followed as they were recorded, without a symbolic link anywhere on the
// way.
#pragma once

namespace ckpt::restore {

/// Opens an absolute path, close-on-exec. Negative: -errno, -ELOOP where a link is in the way. Plain system calls only.
int open_without_links(const char* path, int flags);

/// The same by hand, folder by folder, for where openat2 cannot be had (a seccomp filter).
int walk_without_links(const char* path, int flags);

}  // namespace ckpt::restore
