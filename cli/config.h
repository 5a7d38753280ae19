// Settings that are not on the command line. Precedence: flag, then CKPT_* variable, then config file, then what is
// built in.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace CLI {
class App;
class Option;
}

namespace ckpt::cli {

/// One `key = value` of a config file. Keys are long option names; a section names the verb that they belong to.
struct Setting {
  std::string section;  ///< empty: a global option
  std::string key, value;
  int line = 0;
};

/// The part of TOML that options need: `[section]`, `key = value`, `# comment`; values bare or in quotes, no arrays.
/// kUsage names the line of the first fault.
Result<std::vector<Setting>> parse_config(std::string_view text, const std::string& subject);

/// Where the value of an option that is not on the command line comes from: "f:3", "CKPT_DUMP_FORCE".
using Origins = std::map<const CLI::Option*, std::string>;

/// The file that CKPT_CONFIG names (empty: none), else ckpt/config.toml below XDG_CONFIG_HOME or ~/.config.
/// Its settings, then the variables (CKPT_PROGRESS; CKPT_DUMP_FORCE for `dump --force`), become the defaults of `app`'s
/// options: parsing overrides them. What is required is given then.
Result<Origins> apply_defaults(CLI::App& app);
/// After parsing: kUsage where such a value stands beside an option that excludes it, of which parsing knows nothing.
Result<void> check_exclusions(const CLI::App& verb, const Origins& origins);

}  // namespace ckpt::cli
