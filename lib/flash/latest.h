// Which checkpoint of a folder is the newest, and which are one too many.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::flash {

constexpr const char* kLatestFile = "LATEST";
constexpr const char* kMegatronLatestFile = "latest_checkpointed_iteration.txt";

/// "iter_0000012"
std::string folder_name(uint64_t step);

/// Makes both files name the checkpoint of `step`, each at once; then removes older ones of agents, so that `keep` are
/// left (0: all). `notes`: what could not be removed.
Result<void> advance(const std::filesystem::path& directory, uint64_t step, unsigned keep,
                     std::vector<std::string>& notes);

/// The folder that LATEST names, else that of the highest step. kNotFound: none.
Result<std::filesystem::path> newest_checkpoint(const std::filesystem::path& directory);

}  // namespace ckpt::flash
