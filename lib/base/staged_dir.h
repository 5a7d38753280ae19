// A folder that appears under its final name complete and durable, or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt {

/// Removes a staging folder that nobody holds any more. False: somebody does, or it cannot be removed.
bool remove_abandoned_staging(const std::filesystem::path& dir);
/// Those of all destinations that lie beside `stem` and whose names begin with its name: where a name has a number in
/// it, nobody comes back to the one that a killed ckpt had. Those that are held stay.
void remove_abandoned_staging_of(const std::filesystem::path& stem);
/// The staging folders in `where` that killed ones have left.
std::vector<std::filesystem::path> find_abandoned_staging(const std::filesystem::path& where);

/// Files are written below `path()`, a hidden folder (0700) beside the destination; `commit` makes everything durable
/// and gives it its name. The destructor without a commit removes what was staged: that is the rollback.
///
/// Where the destination is itself a mount point no rename can replace it: then the staging folder lies inside it, and
/// `commit` moves the entries up, the one named `last` (the commit point: a manifest) after all others. Where no entry
/// is `last` the mount point gets the owner, the mode and the times of the staging folder, too.
///
/// A staging folder is flock-ed by its owner, so that one left behind by a killed ckpt is known as such: `create`
/// removes abandoned ones of the same destination.
class StagedDir {
 public:
  /// What the destination is to be. kFile: one file, that which `commit` is given; it is staged in a folder all the
  /// same.
  enum class Kind { kFolder, kFile };

  /// The folders above the destination. kMade: those that are missing are made, and a rollback removes them again.
  /// kThere: none is; where they are gone it fails (kNotFound).
  enum class Above { kMade, kThere };

  /// Refuses (kUsage) a destination that exists and is not an empty folder, unless `force`: then commit replaces it.
  static Result<StagedDir> create(const std::filesystem::path& destination, bool force, Kind kind = Kind::kFolder,
                                  Above above = Above::kMade);
  /// A staging folder that somebody else made and filled, on the destination's file system; without a commit it stays.
  static Result<StagedDir> adopt(const std::filesystem::path& staging, const std::filesystem::path& destination,
                                 bool force, Kind kind);
  StagedDir(StagedDir&&) noexcept;
  StagedDir& operator=(StagedDir&&) noexcept;
  ~StagedDir();

  /// mkdtemp's 0700 becomes what mkdir gives: checkpoints of models are shared as other files are. Before anything is
  /// staged.
  Result<void> share() const;

  const std::filesystem::path& path() const { return staging_; }
  const std::filesystem::path& destination() const { return destination_; }

  /// fsync of every file and folder, rename, fsync of the parent; where that fails the name is taken back. `last`: the
  /// entry that makes the whole complete, if there is one. Without `durable` nothing is synced: complete under its
  /// name, but a crash of the machine may still lose it.
  Result<void> commit(const std::string& last, bool durable = true);

 private:
  StagedDir() = default;
  Result<void> examine(const std::filesystem::path& destination, bool force, Kind kind);
  using Parents = std::vector<std::pair<UniqueFd, std::string>>;
  Result<Parents> open_parents() const;
  static Result<void> sync(const Parents& parents);
  Result<void> make_staging(const std::filesystem::path& where, const std::string& prefix);
  Result<void> commit_inside(const std::string& last, bool durable);
  Result<void> commit_file(const std::string& last, bool durable);
  void rollback() noexcept;

  std::filesystem::path destination_, staging_;
  std::vector<std::filesystem::path> parents_;  ///< folders above the destination that did not exist before
  UniqueFd lock_;
  Kind kind_ = Kind::kFolder;
  bool adopted_ = false;
  bool inside_ = false;
  bool force_ = false;
  bool active_ = false;
};

}  // namespace ckpt
