// Folders with many saves: which of them a user means, and which are complete. Images of processes and checkpoints of
// models alike.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/store/image.h"

namespace ckpt::cli {

/// `DIR@latest` becomes the newest complete save in DIR, `DIR@100` the one of step 100; both are told. Any other text,
/// and whatever exists by that name, stays as it is. Newer saves that are not complete are skipped with a note, and so
/// are those that are newer than what a tracker file (latest_checkpointed_iteration.txt, ...) names.
/// A URL becomes the path of its placeholders (Context::local).
/// kUsage: two could be meant. kNotFound: none is there.
Result<std::string> resolve_saved(const std::string& text, Saved wanted, Context& context);

/// What is known of a checkpoint without reading tensors.
struct CheckpointFacts {
  std::string format;     ///< empty: of a kind that ckpt does not read
  Result<void> complete;  ///< kUnsupported: nobody here can say
  uint64_t bytes = 0;     ///< of its files
};
/// Nothing: it is no checkpoint.
std::optional<CheckpointFacts> look_at_checkpoint(const std::filesystem::path& path);

/// kNotFound, kCorrupt, ...: it, or a parent, cannot be read, or files are missing or of another size. Pages are not
/// read.
Result<void> check_image(const std::filesystem::path& path);

/// Whether all that images need is there, by their manifests alone. What was found out about a folder is kept.
class Parents {
 public:
  Result<void> check(const std::filesystem::path& image, const store::Manifest& manifest);

 private:
  std::map<std::string, Result<void>> known_;  ///< by canonical path: what its own parents are like
};

}  // namespace ckpt::cli
