// What a save costs, found out from one that was made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "cli/command.h"

namespace ckpt::cli {

struct SaveCost {
  uint64_t stall_us = 0;  ///< whoever is saved stands still for so long
  uint64_t write_us = 0;  ///< from its beginning until the save is durable; 0: not known to be longer
  uint64_t bytes = 0;     ///< 0: not known
  std::string source;     ///< in words: where the figures come from
};

/// A duration is taken as it is. Of a folder with process images: the median of what the newest five recorded of
/// themselves. Of any other file or folder: its bytes by `bytes_a_second`, or, without that, by the rate at which such
/// bytes are written and synced there now (to a file without a name, 256 MiB at most).
Result<SaveCost> find_save_cost(const std::string& text, std::optional<uint64_t> bytes_a_second,
                                const std::string& option, Context& context);

/// "3.5%" or "0.035": more than 0, at most 1.
Result<double> parse_part(const std::string& text, const std::string& option);

}  // namespace ckpt::cli
