// Where each mount of a new mount namespace comes from.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/mounts/options.h"
#include "lib/state/mounts/record.h"

namespace ckpt::state {

struct MountSource {
  enum class Kind {
    kGiven,  ///< `path`, which the user named
    kHost,   ///< `path`, where it must be the very one that the processes had
    kNew,    ///< `path` of its file system, which is made anew
    kOther,  ///< `path` of what mount `other` shows
    kElsewhere,  ///< `path` of what mount `other` of another mount namespace of the tree, `whose`, shows
  };
  Kind kind = Kind::kGiven;
  std::string path;
  int other = -1;
  size_t whose = 0;
};

/// The mount namespaces of a tree that are made before this one.
using OtherMounts = std::vector<const store::Mounts*>;

/// A kind of file system that the kernel makes anew for new namespaces, or from folders of theirs, or, as
/// `is_in_memory`, that goes with the image.
bool can_be_made(const std::string& type);
bool is_in_memory(const std::string& type);

/// Of the options of a mount or a file system.
bool is_read_only(const std::string& options);

/// `path` below `folder`, without a slash in front; false: it is not below it.
bool below(const std::string& path, const std::string& folder, std::string& rest);

/// In the order of the mounts. Each one for which there is no way is a cause of the error (kUnsupported).
Result<std::vector<MountSource>> plan_mounts(const store::Mounts& mounts, const MountOptions& options,
                                             const OtherMounts& others = {});
/// The same, each cause by itself; what is external counts as given.
std::vector<std::string> mounts_in_the_way(const store::Mounts& mounts, const OtherMounts& others = {});

/// kCorrupt: a description that makes no sense in itself.
Result<void> validate_mounts(const store::Mounts& mounts);

}  // namespace ckpt::state
