// run: a program in our place, the device interposer preloaded.
#include <unistd.h>

#include <cstdlib>

#include "cli/command.h"
#include "cli/inherited_signals.h"
#include "cli/program_file.h"

namespace ckpt::cli {

namespace {

struct RunFlags {
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

Result<void> run_run(const RunFlags& flags) {
  CKPT_TRY_ASSIGN(std::string program, find_program(flags.command.front()));
  CKPT_TRY(check_preloadable(program));
  CKPT_TRY_ASSIGN(std::string library, find_interposer());
  CKPT_TRY(preload(library));
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
  return [state](Context&) { return run_run(*state); };
}

}  // namespace ckpt::cli
