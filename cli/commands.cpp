// The table of verbs: explicit, in the order in which help shows them. Each verb lives in cmd_<verb>.cpp.
#include <array>

#include "cli/command.h"

namespace ckpt::cli {

// One declaration a verb, in the table's order.

std::span<const Command> commands() {
  static const std::vector<Command> kCommands = {
  };
  return kCommands;
}

}  // namespace ckpt::cli
