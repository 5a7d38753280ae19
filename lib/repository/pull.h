// What was pushed, out of a store: byte for byte, with names, permissions and times.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lib/base/progress.h"
#include "lib/repository/repository.h"

namespace ckpt::repository {

struct PullOptions {
  std::filesystem::path dir;  ///< becomes the folder, or gets the file
  bool force = false;         ///< takes the place of what is there, whose content is used as far as it is the same
  bool trust = false;         ///< also an image that others than this user may have written
};

struct PullReport {
  Ref ref;
  std::filesystem::path path;  ///< of the image or the checkpoint
  uint64_t fetched = 0;        ///< bytes that came from the store
  uint64_t reused = 0;         ///< bytes that were there
  uint64_t us = 0;
};

/// Nothing of it is seen before all of it is there and durable. Owners are those of who pulls; no permission beyond
/// rwxrwxrwx is given.
Result<PullReport> pull(Repository& repository, const std::string& name, const PullOptions& options,
                        ProgressSink& progress);

}  // namespace ckpt::repository
