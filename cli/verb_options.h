// How a verb declares its options: bound to variables, checked while they are parsed. CLI11 does the work behind it, in
// verb_options.cpp and where the whole command line is put together; its templates cost 13 s of compiling in every file
// that sees them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ckpt::cli {

/// One declared option; a handle that lives as long as the VerbOptions it came from. Each call returns it again.
class VerbOption {
 public:
  explicit VerbOption(CLI::Option* option) : option_(option) {}

  VerbOption& required();
  /// What stands for its value in the help text.
  VerbOption& type_name(const std::string& name);
  VerbOption& one_of(const std::vector<std::string>& values);
  VerbOption& in_range(int64_t least, int64_t most);
  VerbOption& positive();
  /// Bytes: "512", "64K", "1GiB"; 1024 to the K.
  VerbOption& as_size();
  VerbOption& excludes(const VerbOption& other);
  /// A list in one word, with this between its elements.
  VerbOption& delimiter(char c);
  /// One value each time it is given: words behind it are arguments.
  VerbOption& one_value_each();
  /// The variable's value is told as the default.
  VerbOption& shows_default();
  /// Not in help or completions.
  VerbOption& hidden();

 private:
  CLI::Option* option_;
};

struct Context;
/// What a path is to be, where it names one of many saves: DIR@latest, DIR@100.
enum class Saved { kImage, kCheckpoint, kEither };

class VerbOptions {
 public:
  using Preparation = std::function<Result<void>(Context&)>;
  /// `preparations`: what has to be done after parsing, before the verb runs.
  VerbOptions(CLI::App& app, std::vector<Preparation>& preparations) : app_(app), preparations_(preparations) {}

  /// "-p,--pid", or "DIR" for an argument. T: a string, a path, a number, or a vector (verb_options.cpp lists
  /// the types); `variable` keeps its value where the option is not given.
  template <class T>
  VerbOption add_option(const std::string& names, T& variable, const std::string& help);
  /// A save that is to be read: `variable` is what resolve_saved (cli/saves.h) makes of it by the time the verb runs.
  VerbOption add_saved(const std::string& names, Saved wanted, std::string& variable, const std::string& help);
  VerbOption add_saved(const std::string& names, Saved wanted, std::filesystem::path& variable,
                       const std::string& help);
  VerbOption add_saved(const std::string& names, Saved wanted, std::vector<std::string>& variable,
                       const std::string& help);
  VerbOption add_flag(const std::string& names, bool& variable, const std::string& help);
  /// Accepted, and of no effect: a flag, an option with a value, and one whose value may be left out.
  VerbOption add_flag(const std::string& names, const std::string& help);
  VerbOption add_ignored_value(const std::string& names, const std::string& help);
  VerbOption add_optional_value(const std::string& names, const std::string& help);
  /// One whose value may be left out: `given` is set, `value` stays empty then.
  VerbOption add_optional_value(const std::string& names, bool& given, std::string& value, const std::string& help,
                                const std::string& type_name);

 private:
  CLI::App& app_;
  std::vector<Preparation>& preparations_;
};

}  // namespace ckpt::cli
