// A verb of the command line, and the table of all of them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/verb_options.h"
#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/remote/mounted.h"

namespace ckpt::cli {

/// What every verb is given besides its own options.
struct Context {
  Console& out;            ///< stdout: data; stderr: everything else
  ProgressSink& progress;
  const Cancel& cancel;    ///< set by the first SIGINT or SIGTERM
  std::vector<std::shared_ptr<remote::Mounted>> mounted = {};  ///< URLs among the paths, until the verb is over

  /// The path as it is, or of a URL that of the placeholders for what lies there (lib/remote/mounted.h).
  Result<std::string> local(const std::string& path_or_url);
  int exit_status = 0;     ///< of a run that succeeded: `restore` ends as the process did that it stood in for
};

/// Under which heading `ckpt --help` shows a verb.
enum class Group { kProcess, kModel, kBoth, kTool };

/// One verb. `add_options` binds its flags to a state of its own and returns what runs after parsing.
/// A failure is an Error; success with another exit code than 0 (verify: 1) is an Error of that code, too.
struct Command {
  using Run = std::function<Result<void>(Context&)>;
  const char* name;
  const char* summary;  ///< one line, as in the README's table and the man page's NAME
  Run (*add_options)(VerbOptions& app);
  Group group = Group::kProcess;
  bool guarded = false;  ///< holds a live process: runs in a worker that outlives a killed ckpt (cli/guard.h)
};

/// In the order in which help shows them.
std::span<const Command> commands();

}  // namespace ckpt::cli
