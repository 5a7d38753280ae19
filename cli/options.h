// From argv to a verb: global options, CKPT_* variables, exit codes of the parser.
#pragma once

#include "cli/console.h"
#include "lib/base/cancel.h"

namespace ckpt::cli {

/// Runs the verb that argv names and returns the program's exit code. `options` is filled while parsing, so that an
/// error on the way is reported in the form that was asked for.
int run_command_line(int argc, char** argv, GlobalOptions& options, const Cancel& cancel);

}  // namespace ckpt::cli
