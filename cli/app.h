// The whole command line as CLI11 sees it: global options, every verb of the table, help texts.
#pragma once

#include <memory>

#include "cli/command.h"

namespace ckpt::cli {

/// Global options fill `options`; parsing a verb sets `chosen`. Both are borrowed for the App's life.
std::unique_ptr<CLI::App> make_app(GlobalOptions& options, Command::Run& chosen);

}  // namespace ckpt::cli
