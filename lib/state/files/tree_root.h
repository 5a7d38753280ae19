// Where "/" of the processes is. Those of another mount namespace have another one than ckpt, which looks their names
// up under that, and never in its own: neither a symbolic link nor ".." leads out of it.
#pragma once

#include <sys/stat.h>

#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::state {

/// For the rest of this process's life, which works on one tree. `namespace_fd`: its mount namespace, for processes
/// that are to be made in it. Call it before there are threads.
void set_tree_root(UniqueFd root, UniqueFd namespace_fd);
bool has_tree_root();
/// The mount namespace it is the root of, or that this thread looks into (UnderRoot); -1: ckpt's own.
int tree_mount_namespace();

/// The root of a process's mount namespace. Needs CAP_SYS_ADMIN and CAP_SYS_CHROOT.
struct MountNamespace {
  UniqueFd root, handle;
};
Result<MountNamespace> open_mount_namespace(const std::string& path);

/// While it lives this thread looks names up under the root of another mount namespace of the tree.
class UnderRoot {
 public:
  /// Null: that of the first process. `other` stays where it is meanwhile.
  explicit UnderRoot(const MountNamespace* other);
  UnderRoot(const UnderRoot&) = delete;
  UnderRoot& operator=(const UnderRoot&) = delete;
  ~UnderRoot();

 private:
  const MountNamespace* before_;
};

/// What /proc/PID/mountinfo says of the whole namespace.
Result<std::string> read_tree_mountinfo();

/// Plain system calls only. Negative: -errno.
int open_tree_root();
/// As open(2), of an absolute path. Negative: -errno.
int open_in_tree(const char* path, int flags);
/// As stat(2), or, without `follow`, as lstat(2).
bool stat_in_tree(const std::string& path, struct stat& st, bool follow = true);
/// For a helper process with folders of its own: the root is its root, and its current folder. Plain system calls only.
bool enter_tree_root();

}  // namespace ckpt::state
