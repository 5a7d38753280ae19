// Where a conversion is made that goes on after a kill, or by many processes at once: a folder beside the destination
// whose name says what it will become. A file in it is complete, or still has ".part" behind its name. Works on file
// systems that several machines share, as far as they know rename and flock.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/staged_dir.h"
#include "lib/base/unique_fd.h"
#include "lib/tensor/layout.h"

namespace ckpt::model {

struct PartOf {
  unsigned index = 0, count = 1;
};

class Workspace {
 public:
  /// Makes the folder or takes up the one that is there, and locks the part. `plan`: what all parts must agree on.
  /// kBusy: the part is being written by another process, or another conversion to the same destination is under way.
  static Result<Workspace> open(const std::filesystem::path& destination, const std::string& plan, PartOf part);

  const std::filesystem::path& files() const { return files_; }
  bool has(const tensor::OutputFile& file) const;
  /// True for one process, once; the others need do nothing more.
  Result<bool> may_finish();
  /// Gives the files their final place and removes the workspace.
  Result<void> finish(const tensor::Layout& layout, const std::filesystem::path& destination, bool force,
                      StagedDir::Kind kind);
  /// Removes the workspace: everything is in its final place.
  void discard();

 private:
  std::filesystem::path root_, files_;
  UniqueFd part_lock_, finish_lock_;
};

/// What a plan is told apart by: the files that it will write, and the files of the source with their sizes and times.
std::string fingerprint(const tensor::Layout& layout, const tensor::Selection& selection);

/// The data files of a part: contiguous, of about equal bytes.
std::vector<size_t> files_of_part(const tensor::Layout& layout, PartOf part);

/// The destination holds what the plan makes, as far as names and sizes tell.
bool is_finished(const tensor::Layout& layout, const std::filesystem::path& destination, StagedDir::Kind kind);

}  // namespace ckpt::model
