// The whole command line as CLI11 sees it: global options, every verb of the table, help texts.
#pragma once

#include <memory>

#include "cli/command.h"

namespace ckpt::cli {

/// The verb that was parsed, and what runs it with the options it was given.
struct Choice {
  const Command* command = nullptr;
  Command::Run run;
};

/// Global options fill `options`; parsing a verb sets `choice`. Both are borrowed for the App's life.
std::unique_ptr<CLI::App> make_app(GlobalOptions& options, Choice& choice);

}  // namespace ckpt::cli
