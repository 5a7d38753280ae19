// What files are now, held against what they were when the image was taken.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/progress.h"
#include "lib/base/unique_fd.h"
#include "lib/state/files/restore.h"
#include "lib/state/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// What the processes did with a file decides how far it may have changed since.
struct FileUse {
  bool needed = false;
  bool mapped = false;         ///< or executed: other bytes would be other data, or other code
  bool read = false;
  bool written = false;        ///< they wrote the file themselves
  bool is_root = false;        ///< set-user-id programs in it would believe what it holds
  uint64_t written_up_to = 0;  ///< the furthest recorded offset of a writer
};
/// Parallel to TreeImage::files.
std::vector<FileUse> uses_of_files(const store::TreeImage& tree);

/// A file as it is now.
struct FileNow {
  UniqueFd handle;  ///< O_PATH: what was looked at is what is opened
  struct statx st {};

  dev_t device() const;
};
/// Follows no link. kNotFound, kMismatch: a link is there.
Result<FileNow> look_at(const store::FileIdentity& file);
/// Where it can be found: the path, or for one that was deleted the name that is left.
const std::string& path_of(const store::FileIdentity& file);

/// When it was changed last, in nanoseconds since 1970.
inline int64_t mtime_ns(const struct stat& st) { return st.st_mtim.tv_sec * 1'000'000'000ll + st.st_mtim.tv_nsec; }
inline int64_t mtime_ns(const struct statx& st) { return st.stx_mtime.tv_sec * 1'000'000'000ll + st.stx_mtime.tv_nsec; }

/// Opening it gives the processes nothing that they did not have: the same file, owner and mode; a plain device; a file
/// of /proc or /sys.
bool is_theirs_already(const store::FileIdentity& file, const FileNow& now);

/// Whether a file may be what it is now: the rules of `open_files`.
class FileComparison {
 public:
  FileComparison(const FileOptions& options, Reasons& reasons, ProgressSink& progress)
      : options_(options), reasons_(reasons), progress_(progress) {}
  void compare(const store::FileIdentity& file, const FileUse& use, const FileNow& now);

 private:
  bool is_allowed(const std::string& path) const;
  void refuse(std::string text);
  void compare_written(const store::FileIdentity& file, const FileUse& use, const FileNow& now, bool same);
  void compare_exactly(const store::FileIdentity& file, const FileNow& now);
  void compare_read(const store::FileIdentity& file, const FileNow& now);

  const FileOptions& options_;
  Reasons& reasons_;
  ProgressSink& progress_;
};

}  // namespace ckpt::restore
