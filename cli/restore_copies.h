// restore --copies: several copies of one image side by side.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/engine/restore.h"

namespace ckpt::cli {

struct CopiesFlags {
  int count = 0;  ///< 0: no copies, one process as it was
  std::vector<std::string> outputs, shared_files;
  std::string number_file, signal;
};

void add_copies_flags(VerbOptions& app, CopiesFlags& flags);
/// kUsage: a flag that goes only with --copies, or that does not go with it.
Result<void> check_copies_flags(const CopiesFlags& flags, const engine::RestoreOptions& options);
Result<void> restore_copies(const CopiesFlags& flags, const engine::RestoreOptions& options, Context& context);

/// "SIGUSR1", "USR1", "10". kUsage, in the name of `option`.
Result<int> parse_signal(const std::string& option, const std::string& word);

}  // namespace ckpt::cli
