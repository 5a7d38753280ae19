// A process that outlives the ckpt which made it by a moment, and takes away what that has left if it was killed.
#pragma once

#include <filesystem>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::engine {

/// While it is there, the end of this process without a word lets the tidier remove the staging folder, reap the
/// snapshots and unmap the parasite areas in the target and its descendants. It is nobody's child here, in a session
/// of its own. What kills it as well (a cgroup's end) leaves that to the next capture of the target, and to the next
/// image of that name.
class Tidier {
 public:
  /// Forks, so while ckpt is still small. kNoRoom: a limit on processes; the capture is as good without.
  static Result<Tidier> spawn(int target, const std::filesystem::path& staging);
  Tidier(Tidier&&) noexcept = default;
  Tidier& operator=(Tidier&&) = delete;
  /// Nothing is left: it ends.
  ~Tidier();

 private:
  explicit Tidier(UniqueFd channel) : channel_(std::move(channel)) {}
  UniqueFd channel_;
};

}  // namespace ckpt::engine
