// What `ckpt guard` remembers of its job, beside the images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::cli {

struct GuardState {
  std::vector<std::string> command;
  uint64_t over = 0;        ///< images up to this number are of a run that has ended well: nobody goes on from them
  std::string boot;         ///< of the machine, when the job was last started; pids mean nothing after another
  int pid = 0;              ///< 0: it does not run
  uint64_t start_time = 0;  ///< as WatchedProcess has it; 0: it was being restored
  uint64_t not_before = 0;  ///< it was started later than that
};

/// guard.json in the folder of the images. A folder without it: a state of nothing. kCorrupt: it is not what was
/// written.
Result<GuardState> read_guard_state(const std::filesystem::path& folder);
/// Durable, or as it was.
Result<void> write_guard_state(const std::filesystem::path& folder, const GuardState& state);
/// Of the running kernel; empty: not known.
std::string boot_id();

}  // namespace ckpt::cli
