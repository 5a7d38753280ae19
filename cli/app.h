// The whole command line as CLI11 sees it: global options, every verb of the table, help texts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"

namespace CLI {
class App;
}

namespace ckpt::cli {

/// The verb that was parsed, and what runs it with the options it was given.
struct Choice {
  const Command* command = nullptr;
  Command::Run run;
};

/// What help and completions know of an option.
struct OptionSummary {
  std::vector<std::string> names;   ///< with their dashes
  std::string summary;
  bool takes_value = false;
  std::vector<std::string> values;  ///< the closed set, where there is one
  bool is_list = false;             ///< several of them in one word, with commas
  bool is_pid = false;
};

struct VerbSummary {
  std::string name, summary;
  std::vector<OptionSummary> options;
  std::vector<std::string> values;  ///< of its first argument, where that is one of a closed set
  bool takes_key = false;           ///< its second argument is a key of its first, a model checkpoint
};

struct CommandLine {
  std::vector<OptionSummary> options;  ///< of every verb
  std::vector<VerbSummary> verbs;
};

CommandLine describe_command_line();

/// What `ckpt --help` prints, or `ckpt VERB --help`; empty where there is no such verb.
std::string help_text(const std::string& verb);
/// What --version prints: version, commit of the source where it is known, image format, and what sets this build apart
/// from others.
std::string version_text(bool json);
/// "ckpt 0.2.0 (7d50341)": what a file says that it was made by.
std::string short_version();

/// Global options fill `options`; parsing a verb sets `choice`. Both are borrowed for the App's life.
std::unique_ptr<CLI::App> make_app(GlobalOptions& options, Choice& choice);

}  // namespace ckpt::cli
