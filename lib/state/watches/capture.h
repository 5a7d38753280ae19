// inotify and fanotify groups, from a duplicate and the text of /proc/PID/fdinfo/FD. Nothing is read from them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/watches/record.h"

namespace ckpt::capture {

/// Finds what a file handle or a mount number stands for, in the mount namespace of ckpt.
class FileFinder {
 public:
  /// `hints`: folders where a file may lie whose name the kernel has forgotten (folders of other open files, the
  /// current one).
  static Result<FileFinder> create(std::vector<std::string> hints);

  struct Handle {
    uint64_t device = 0, inode = 0;  ///< of the file system's super block, as fdinfo has them
    int type = 0;
    std::vector<uint8_t> bytes;
  };
  struct NamedFile {
    std::string path;
    uint64_t device = 0, inode = 0;  ///< as stat gives them, which for some file systems differ from those of fdinfo
  };
  /// kMismatch: it was deleted; kUnsupported: nothing tells its name. Needs CAP_DAC_READ_SEARCH. Changes the current
  /// folder: call it in a thread that shares its own with none.
  Result<NamedFile> find(const Handle& handle) const;
  Result<std::string> path_of_mount(int mount_id) const;
  Result<std::string> path_of_filesystem(uint64_t device) const;

 private:
  struct Mount {
    int id = 0;
    uint64_t device = 0;
    std::string path;
  };
  static UniqueFd open_handle(const Mount& mount, const Handle& handle);
  std::vector<Mount> mounts_;
  std::vector<std::string> hints_;
};

/// Errors name the watch; each is a reason against a dump.
Result<store::Inotify> describe_inotify(int fd, std::string_view fdinfo, const FileFinder& finder);
/// Groups that decide about an access (FAN_CLASS_CONTENT, FAN_CLASS_PRE_CONTENT) are kUnsupported; events that wait to
/// be read are kBusy.
Result<store::Fanotify> describe_fanotify(int fd, std::string_view fdinfo, const FileFinder& finder);

}  // namespace ckpt::capture
