// The table of verbs: explicit, in the order in which help shows them. Each verb lives in cmd_<verb>.cpp.
#include <vector>

#include "cli/command.h"

namespace ckpt::cli {

// One declaration a verb, in the table's order.
Command::Run add_pre_dump(CLI::App& app);
Command::Run add_dump(CLI::App& app);
Command::Run add_restore(CLI::App& app);
Command::Run add_run(CLI::App& app);
Command::Run add_suspend(CLI::App& app);
Command::Run add_resume(CLI::App& app);
Command::Run add_check(CLI::App& app);
Command::Run add_inspect(CLI::App& app);
Command::Run add_load_metadata(CLI::App& app);
Command::Run add_verify(CLI::App& app);
Command::Run add_convert(CLI::App& app);
Command::Run add_cat(CLI::App& app);
Command::Run add_list(CLI::App& app);
Command::Run add_squash(CLI::App& app);
Command::Run add_rm(CLI::App& app);
Command::Run add_completion(CLI::App& app);

std::span<const Command> commands() {
  static const std::vector<Command> kCommands = {
      {"pre-dump", "Take an image of one instant while the process goes on", add_pre_dump, Group::kProcess, true},
      {"dump", "Take an image of now; after a pre-dump only the delta is copied", add_dump, Group::kProcess, true},
      {"restore", "Make a process run again from its image", add_restore, Group::kProcess},
      {"run", "Start a program so that its GPU memory can be saved while it runs", add_run, Group::kProcess},
      {"suspend", "Free the GPU that a process uses; it goes on up to its next GPU call", add_suspend, Group::kProcess},
      {"resume", "Give a suspended process its GPU state back", add_resume, Group::kProcess},
      {"check", "Say whether this host, this process can be dumped and restored", add_check, Group::kProcess},
      {"list", "The process images below a folder", add_list, Group::kProcess},
      {"squash", "Make a chain of process images into one", add_squash, Group::kProcess},
      {"rm", "Remove process images that no other image needs", add_rm, Group::kProcess},
      {"convert", "The same tensors in another format, streamed", add_convert, Group::kModel},
      {"cat", "Print one tensor's bytes, or a slice of it, raw or as npy", add_cat, Group::kModel},
      {"inspect", "Show what a process image or a model checkpoint holds", add_inspect, Group::kBoth},
      {"verify", "Check that every byte is there and right", add_verify, Group::kBoth},
      {"load-metadata", "Print keys, dtypes, shapes and shards as JSON; no tensor byte is read", add_load_metadata, Group::kBoth},
      {"completion", "Print a shell's completion script", add_completion, Group::kTool},
  };
  return kCommands;
}

}  // namespace ckpt::cli
