// The table of verbs: explicit, in the order in which help shows them. Each verb lives in cmd_<verb>.cpp.
#include <vector>

#include "cli/command.h"
#include "cli/remote_images.h"
#include "lib/remote/url.h"

namespace ckpt::cli {

// One declaration a verb, in the table's order.
Command::Run add_pre_dump(VerbOptions& app);
Command::Run add_dump(VerbOptions& app);
Command::Run add_restore(VerbOptions& app);
Command::Run add_migrate(VerbOptions& app);
Command::Run add_receive(VerbOptions& app);
Command::Run add_run(VerbOptions& app);
Command::Run add_suspend(VerbOptions& app);
Command::Run add_resume(VerbOptions& app);
Command::Run add_lock(VerbOptions& app);
Command::Run add_unlock(VerbOptions& app);
Command::Run add_timeslice(VerbOptions& app);
Command::Run add_check(VerbOptions& app);
Command::Run add_criu(VerbOptions& app);
Command::Run add_inspect(VerbOptions& app);
Command::Run add_load_metadata(VerbOptions& app);
Command::Run add_verify(VerbOptions& app);
Command::Run add_convert(VerbOptions& app);
Command::Run add_cat(VerbOptions& app);
Command::Run add_agent(VerbOptions& app);
Command::Run add_persist(VerbOptions& app);
Command::Run add_protect(VerbOptions& app);
Command::Run add_rebuild(VerbOptions& app);
Command::Run add_push(VerbOptions& app);
Command::Run add_pull(VerbOptions& app);
Command::Run add_gc(VerbOptions& app);
Command::Run add_export(VerbOptions& app);
Command::Run add_import(VerbOptions& app);
Command::Run add_plan(VerbOptions& app);
Command::Run add_watch(VerbOptions& app);
Command::Run add_guard(VerbOptions& app);
Command::Run add_list(VerbOptions& app);
Command::Run add_squash(VerbOptions& app);
Command::Run add_rm(VerbOptions& app);
Command::Run add_help(VerbOptions& app);
Command::Run add_version(VerbOptions& app);
Command::Run add_completion(VerbOptions& app);

Result<std::string> Context::local(const std::string& path_or_url) {
  if (!remote::is_url(path_or_url)) return path_or_url;
  CKPT_TRY_ASSIGN(std::shared_ptr<remote::Mounted> there, remote::Mounted::open(path_or_url, &cancel));
  mounted.push_back(there);
  CKPT_TRY(mount_parents(*there));
  return there->path().string();
}

std::span<const Command> commands() {
  static const std::vector<Command> kCommands = {
      {"pre-dump", "Take an image of one instant while the process goes on", add_pre_dump, Group::kProcess, true},
      {"dump", "Take an image of now; after a pre-dump only the delta is copied", add_dump, Group::kProcess, true},
      {"restore", "Make a process run again from its image", add_restore, Group::kProcess},
      {"migrate", "Move a running process to another host", add_migrate, Group::kProcess, true},
      {"receive", "The other end of ckpt migrate, which starts it there", add_receive, Group::kProcess},
      {"run", "Start a program so that its GPU memory can be saved while it runs", add_run, Group::kProcess},
      {"watch", "Take images of a process every so often, and restore it when it died", add_watch, Group::kProcess},
      {"guard", "Run a program that becomes an image when told to make way, and goes on later", add_guard,
       Group::kProcess},
      {"suspend", "Free the GPU that a process uses; it goes on up to its next GPU call", add_suspend, Group::kProcess},
      {"resume", "Give a suspended process its GPU state back", add_resume, Group::kProcess},
      {"lock", "Hold a process's GPU calls once its GPU work is done; nothing is moved", add_lock, Group::kProcess},
      {"unlock", "Let the GPU calls of a locked process go on", add_unlock, Group::kProcess},
      {"timeslice", "Let processes that do not fit on the GPUs side by side take turns", add_timeslice,
       Group::kProcess},
      {"check", "Say whether this host, this process can be dumped and restored", add_check, Group::kProcess},
      {"list", "The process images and checkpoints below a folder", add_list, Group::kProcess},
      {"squash", "Make a chain of process images into one", add_squash, Group::kProcess},
      {"rm", "Remove process images that no other image needs", add_rm, Group::kProcess},
      {"export", "Write a process image as one stream, or as an image of containers", add_export, Group::kProcess},
      {"import", "Take in what export has written, checked as a stranger's", add_import, Group::kProcess},
      {"criu", "Speak criu's command line and RPC in its place, for runc and podman", add_criu, Group::kProcess},
      {"convert", "The same tensors in another format, streamed", add_convert, Group::kModel},
      {"cat", "Print one tensor's bytes, or a slice of it, raw or as npy", add_cat, Group::kModel},
      {"agent", "Hold what trainers save in memory, and write it to storage", add_agent, Group::kModel},
      {"persist", "Have an agent write its newest step to storage now", add_persist, Group::kModel},
      {"inspect", "Show what a process image or a model checkpoint holds", add_inspect, Group::kBoth},
      {"verify", "Check that every byte is there and right", add_verify, Group::kBoth},
      {"load-metadata", "Print keys, dtypes, shapes and shards as JSON; no tensor byte is read", add_load_metadata,
       Group::kBoth},
      {"push", "Put an image or a checkpoint into a store that keeps equal chunks once", add_push, Group::kBoth},
      {"pull", "Fetch from a store what was pushed, byte for byte", add_pull, Group::kBoth},
      {"gc", "Give back the room in a store that nothing needs any more", add_gc, Group::kBoth},
      {"protect", "Keep parity of each rank's folder on other nodes, so that lost nodes lose nothing", add_protect,
       Group::kBoth},
      {"rebuild", "Bring back the folders that lost nodes took with them, byte for byte", add_rebuild, Group::kBoth},
      {"plan", "Say how often to save, from what a save costs and how often a job fails", add_plan, Group::kBoth},
      {"help", "Print the verbs, or the options of one", add_help, Group::kTool},
      {"version", "Print the version, and what this build has", add_version, Group::kTool},
      {"completion", "Print a shell's completion script", add_completion, Group::kTool},
  };
  return kCommands;
}

}  // namespace ckpt::cli
