// The table of verbs: explicit, in the order in which help shows them. Each verb lives in cmd_<verb>.cpp.
#include <vector>

#include "cli/command.h"

namespace ckpt::cli {

// One declaration a verb, in the table's order.
Command::Run add_completion(CLI::App& app);

std::span<const Command> commands() {
  static const std::vector<Command> kCommands = {
      {"completion", "Print a shell's completion script", add_completion, Group::kTool},
  };
  return kCommands;
}

}  // namespace ckpt::cli
