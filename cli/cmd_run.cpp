// run: a program in our place, the device interposer preloaded.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "cli/command.h"
#include "cli/inherited_signals.h"
#include "cli/program_file.h"

namespace ckpt::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libckpt-cuda.so";

struct RunFlags {
  std::vector<std::string> command;
};

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// Beside the binary, as it is built; in ../lib*/ckpt or ../lib/*/ckpt, as it is installed.
Result<std::string> find_library() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return sys_error(error.value(), "/proc/self/exe", "cannot tell where this program is");
  if (is_file(folder / kLibrary)) return (folder / kLibrary).string();
  const fs::path prefix = folder.parent_path();
  for (fs::directory_iterator outer(prefix, error), end; !error && outer != end; outer.increment(error)) {
    if (!outer->path().filename().string().starts_with("lib")) continue;
    if (const fs::path found = outer->path() / "ckpt" / kLibrary; is_file(found)) return found.string();
    std::error_code inner_error;
    for (fs::directory_iterator inner(outer->path(), inner_error); !inner_error && inner != end; inner.increment(inner_error)) {
      if (const fs::path found = inner->path() / "ckpt" / kLibrary; is_file(found)) return found.string();
    }
  }
  return Error(Code::kUnsupported, kLibrary, "is not installed").with_hint("it belongs beside ckpt, or in ../lib/ckpt");
}

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
  CKPT_TRY_ASSIGN(std::string library, find_library());
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
