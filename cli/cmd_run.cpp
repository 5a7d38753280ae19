// run: a program in our place, the device interposer preloaded, or what it writes tracked.
#include <unistd.h>

#include <cstdlib>

#include "cli/command.h"
#include "cli/inherited_signals.h"
#include "cli/program_file.h"
#include "lib/state/files/tracker.h"

namespace ckpt::cli {

namespace {

struct RunFlags {
  bool track_files = false;
  std::vector<std::string> command;
};

/// In front of what is preloaded already, once.
Result<void> preload(const std::string& library) {
  if (library.find_first_of(" :") != std::string::npos) {
    return fail(Code::kUnsupported, library, "the loader cannot preload a file whose path has a space or a colon");
  }
  const char* before = std::getenv("LD_PRELOAD");
  std::string all = before == nullptr ? "" : before;
  if ((" " + all + " ").find(library) == std::string::npos) all = all.empty() ? library : library + ":" + all;
  ::setenv("LD_PRELOAD", all.c_str(), 1);
  return {};
}

Result<void> preload_interposer(const std::string& program) {
  CKPT_TRY(check_preloadable(program));
  CKPT_TRY_ASSIGN(std::string library, find_interposer());
  return preload(library);
}

Result<void> track_files(Context& context) {
  std::vector<std::string> unseen;
  CKPT_TRY(state::start_tracker(::getpid(), unseen));
  for (const std::string& one : unseen) context.progress.note("what is written there is not known: " + one);
  return {};
}

Result<void> run_run(const RunFlags& flags, Context& context) {
  CKPT_TRY_ASSIGN(std::string program, find_program(flags.command.front()));
  CKPT_TRY(flags.track_files ? track_files(context) : preload_interposer(program));
  std::vector<char*> words;
  for (const std::string& word : flags.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  restore_signals();
  ::execv(program.c_str(), words.data());
  return sys_error(program, "cannot be executed");
}

}  // namespace

Command::Run add_run(VerbOptions& app) {
  auto state = std::make_shared<RunFlags>();
  app.add_option("COMMAND", state->command, "After --: the program and its arguments").required();
  app.add_flag("--track-fs", state->track_files,
               "Preload nothing; know which files it and its children write, for dump --files written");
  return [state](Context& context) { return run_run(*state, context); };
}

}  // namespace ckpt::cli
