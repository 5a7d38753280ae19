// The receiver's copy of the image, until the processes have been made from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/digest.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/migrate/link.h"

namespace ckpt::migrate {

/// Nobody's child, which outlives this process: should this one, and who was forked from it since, have ended without
/// a byte to the descriptor, it removes the folder.
Result<UniqueFd> start_sweeper(const std::filesystem::path& folder);

/// A folder of its own below `where`, on tmpfs where that is empty. It goes with this object; should this process be
/// killed, a small one that outlives it removes it.
class Stage {
 public:
  static Result<Stage> make(const std::filesystem::path& where);
  Stage(Stage&&) noexcept = default;
  Stage& operator=(Stage&&) = delete;
  ~Stage();

  /// A frame kData, kEnd or kLater: kCorrupt (a name with a path in it, bytes out of order, another digest, a unit
  /// twice), kNoRoom.
  Result<void> take(const Frame& frame);
  /// Once nothing more comes but what was announced for later: is each file whole? kCorrupt.
  Result<void> finish();
  /// It was announced with kLater.
  bool is_later(const std::string& name) const;
  /// Whether the units of [offset, offset + size) of a file that was announced have come: calls `missing(offset)` for
  /// each that has not. kCorrupt: it has no such bytes.
  Result<bool> has(const std::string& name, uint64_t offset, uint64_t size,
                   const std::function<void(uint64_t)>& missing) const;
  /// Bytes of the files announced, of which units are missing.
  uint64_t missing() const { return missing_; }
  /// In memory: what is still to come takes room beside the processes.
  bool in_memory() const { return in_memory_; }

  const std::filesystem::path& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }
  /// Bytes that may come at most: what was free at the beginning.
  uint64_t room() const { return room_; }

 private:
  Stage() = default;
  struct File {
    UniqueFd fd;
    uint64_t size = 0;
    Xxh3 digest;
    bool whole = false;
    std::vector<bool> there{};  ///< of a file that was announced, by unit
    bool later = false;
  };
  Result<File*> file(const std::string& name);
  Result<void> append(const Frame& frame, File& file);
  Result<void> announce(const Frame& frame, File& file);
  Result<void> put(const Frame& frame, File& file);

  std::filesystem::path path_;
  UniqueFd sweeper_;  ///< its other end is with the process that outlives this one
  std::map<std::string, File> files_;
  uint64_t bytes_ = 0, room_ = 0, missing_ = 0;
  bool in_memory_ = false;
};

}  // namespace ckpt::migrate
