// The table of verbs: explicit, in the order in which help shows them. Each verb lives in cmd_<verb>.cpp.
#include <vector>

#include "cli/command.h"

namespace ckpt::cli {

// One declaration a verb, in the table's order.
Command::Run add_inspect(CLI::App& app);
Command::Run add_load_metadata(CLI::App& app);
Command::Run add_verify(CLI::App& app);
Command::Run add_completion(CLI::App& app);

std::span<const Command> commands() {
  static const std::vector<Command> kCommands = {
      {"inspect", "Show what a process image or a model checkpoint holds", add_inspect, Group::kBoth},
      {"verify", "Check that every byte is there and right", add_verify, Group::kBoth},
      {"load-metadata", "Print keys, dtypes, shapes and shards as JSON; no tensor byte is read", add_load_metadata, Group::kBoth},
      {"completion", "Print a shell's completion script", add_completion, Group::kTool},
  };
  return kCommands;
}

}  // namespace ckpt::cli
