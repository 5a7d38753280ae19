// An image or a checkpoint into a store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/base/progress.h"
#include "lib/repository/repository.h"

namespace ckpt::repository {

struct PushOptions {
  std::string name;
  std::string format;  ///< of a model: told in lists
  bool force = false;  ///< takes the place of what has the name
};

struct PushReport {
  Ref ref;
  uint64_t chunks = 0, new_chunks = 0;
  uint64_t new_bytes = 0;  ///< of new chunks, before compression
  uint64_t stored = 0;     ///< bytes that the store has more
  uint64_t us = 0;
};

/// Reads all of it once, on all cores. It has its name once all of it is durable; before that nothing of it is seen,
/// and what a killed push leaves takes room until `collect_garbage`. kMismatch: the name is taken, or a file changed
/// meanwhile. kBusy: somebody took this push for dead.
Result<PushReport> push(Repository& repository, const std::filesystem::path& path, const PushOptions& options,
                        ProgressSink& progress);

}  // namespace ckpt::repository
