// criu's command line. getopt_long reads it, as it does in criu: short options in one word, abbreviated long ones.
#include "cli/criu/options.h"

#include <fmt/format.h>
#include <getopt.h>

#include <cstdlib>
#include <functional>

#include "cli/criu/option_table.h"
#include "lib/base/io.h"

namespace ckpt::cli::criu {

namespace {

namespace fs = std::filesystem;

/// Numbers of long options for getopt_long: the row of the table, above all letters.
constexpr int kFirstRow = 1000, kNoConfig = 1, kConfig = 2, kHelp = 'h', kVersion = 'V';

struct Configs {
  bool defaults = true;
  std::string file;
};

/// Each occurrence of an option is given to `act`.
Result<std::vector<std::string>> walk(const std::vector<std::string>& words, Configs& configs, std::string& instead,
                                      const std::function<Result<void>(const Known&, const std::string&)>& act) {
  std::string letters = ":hV";
  std::vector<option> longs = {{"no-default-config", no_argument, nullptr, kNoConfig},
                               {"config", required_argument, nullptr, kConfig},
                               {"help", no_argument, nullptr, kHelp},
                               {"version", no_argument, nullptr, kVersion}};
  for (size_t i = 0; i < known_options().size(); ++i) {
    const Known& known = known_options()[i];
    const int argument = known.value == Value::kNone       ? no_argument
                         : known.value == Value::kRequired ? required_argument
                                                           : optional_argument;
    longs.push_back({known.name, argument, nullptr, kFirstRow + static_cast<int>(i)});
    if (known.letter != 0) letters += known.letter + std::string(static_cast<size_t>(argument), ':');
  }
  longs.push_back({nullptr, 0, nullptr, 0});
  std::vector<char*> arguments = {const_cast<char*>("criu")};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const int count = static_cast<int>(arguments.size()) - 1;
  ::optind = 0;  // from the beginning, also a second time
  ::opterr = 0;
  for (;;) {
    const int at = ::optind == 0 ? 1 : ::optind;
    const int got = ::getopt_long(count, arguments.data(), letters.c_str(), longs.data(), nullptr);
    if (got < 0) break;
    const std::string value = ::optarg == nullptr ? "" : ::optarg;
    const std::string word = at < count ? arguments[static_cast<size_t>(at)] : "";
    if (got == '?') return fail(Code::kUsage, word, "is no option of criu's");
    if (got == ':') return fail(Code::kUsage, word, "wants a value");
    if (got == kHelp)
      instead = "help";
    else if (got == kVersion)
      instead = "version";
    else if (got == kNoConfig)
      configs.defaults = false;
    else if (got == kConfig)
      configs.file = value;
    else if (got >= kFirstRow)
      CKPT_TRY(act(known_options()[static_cast<size_t>(got - kFirstRow)], value));
    for (const Known& known : known_options()) {
      if (got == known.letter && known.letter != 0) CKPT_TRY(act(known, value));
    }
  }
  std::vector<std::string> rest;
  for (int i = ::optind; i < count; ++i) rest.emplace_back(arguments[static_cast<size_t>(i)]);
  return rest;
}

/// One line of a configuration file: an option without its dashes, its value behind blanks or in quotes. # begins a
/// comment.
Result<void> apply_line(const std::string& text, const std::string& where, Options& options) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos || text[begin] == '#') return {};
  const size_t end = std::min(text.find_first_of(" \t\r#", begin), text.size());
  const std::string name = text.substr(begin, end - begin);
  const Known* known = find_option(name);
  if (known == nullptr) return fail(Code::kUsage, where, fmt::format("'{}' is no option of criu's", name));
  std::string value;
  const size_t first = text.find_first_not_of(" \t\r", end);
  if (first != std::string::npos && text[first] != '#') {
    const bool quoted = text[first] == '"' || text[first] == '\'';
    const size_t from = quoted ? first + 1 : first;
    const size_t to = quoted ? text.find(text[first], from) : text.find_first_of(" \t\r#", from);
    if (quoted && to == std::string::npos) return fail(Code::kUsage, where, "a quote is not closed");
    value = text.substr(from, to == std::string::npos ? to : to - from);
  }
  if (known->value == Value::kNone && !value.empty())
    return fail(Code::kUsage, where, fmt::format("'{}' has no value", name));
  if (known->value == Value::kRequired && value.empty())
    return fail(Code::kUsage, where, fmt::format("'{}' wants a value", name));
  auto applied = apply(*known, value, options);
  if (!applied) return std::move(applied.error()).with_cause("asked for by " + where);
  return {};
}

/// Those that criu reads before its command line.
Result<void> apply_default_configs(const Configs& configs, Options& options) {
  std::vector<fs::path> files;
  if (configs.defaults) {
    files.emplace_back("/etc/criu/default.conf");
    if (const char* home = std::getenv("HOME")) files.push_back(fs::path(home) / ".criu/default.conf");
  }
  if (const char* named = std::getenv("CRIU_CONFIG_FILE")) files.emplace_back(named);
  for (const fs::path& file : files) CKPT_TRY(apply_config(file, options));
  if (configs.file.empty()) return {};
  std::error_code ec;
  if (!fs::exists(configs.file, ec)) return fail(Code::kNotFound, configs.file, "there is no such configuration file");
  return apply_config(configs.file, options);
}

/// Those that criu has and ckpt, in its place, has not.
Result<void> check_command(const std::string& command) {
  for (const char* known : {"dump", "pre-dump", "restore", "check", "dedup", "swrk"}) {
    if (command == known) return {};
  }
  if (command == "lazy-pages") return not_supported("criu lazy-pages", "ckpt restore --lazy brings its own daemon");
  for (const char* other : {"page-server", "service", "cpuinfo"}) {
    if (command == other) return not_supported(std::string("criu ") + other, command == "page-server" ? kNoServer : "");
  }
  return fail(Code::kUsage, command, "is no command of criu's");
}

}  // namespace

Error not_supported(const std::string& name, const std::string& why) {
  return Error(Code::kUnsupported, name, "is not supported by ckpt in criu's place").with_hint(why);
}

Result<void> apply_config(const fs::path& file, Options& options) {
  constexpr uint64_t kLimit = 1 << 20;
  std::error_code ec;
  if (!fs::exists(file, ec)) return {};
  CKPT_TRY_ASSIGN(const std::string text, io::read_file(file, kLimit));
  int line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    CKPT_TRY(apply_line(text.substr(at, end - at), fmt::format("{}:{}", file.string(), ++line), options));
    at = end + 1;
  }
  return {};
}

Result<CommandLine> parse_command_line(const std::vector<std::string>& words) {
  std::vector<std::string> own = words, command;
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] != "--") continue;
    command.assign(own.begin() + static_cast<ptrdiff_t>(i) + 1, own.end());
    own.resize(i);
  }
  CommandLine out;
  Configs configs;
  std::string instead;
  std::vector<std::pair<const Known*, std::string>> given;
  auto note = [&](const Known& known, const std::string& value) -> Result<void> {
    return given.emplace_back(&known, value), Result<void>();
  };
  CKPT_TRY_ASSIGN(std::vector<std::string> rest, walk(own, configs, instead, note));
  if (!instead.empty()) return out.command = instead, out;
  if (rest.empty()) return Error(Code::kUsage, "", "a command is required").with_hint("criu --help lists them");
  out.command = rest[0];
  CKPT_TRY(check_command(out.command));
  const size_t arguments = out.command == "swrk" ? 2 : 1;
  if (rest.size() > arguments) return fail(Code::kUsage, rest[arguments], "is one argument too many");
  if (out.command == "swrk") {
    if (rest.size() < 2) return fail(Code::kUsage, "swrk", "wants the number of a descriptor");
    CKPT_TRY_ASSIGN(out.socket, small_number(rest[1], "swrk"));
  }
  CKPT_TRY(apply_default_configs(configs, out.options));
  bool has_command = false;
  for (const auto& [known, value] : given) {
    CKPT_TRY(apply(*known, value, out.options));
    has_command = has_command || known->name == std::string("exec-cmd");
  }
  if (has_command != !command.empty())
    return fail(Code::kUsage, "--exec-cmd", "goes with a command behind --, and only that");
  out.options.exec_command = std::move(command);
  if ((out.command == "dump" || out.command == "pre-dump") && out.options.pid == 0)
    return fail(Code::kUsage, out.command, "wants --tree PID");
  if (out.options.sibling && !out.options.detach)
    return fail(Code::kUsage, "--restore-sibling", "goes with --restore-detached");
  return out;
}

std::string help_text() {
  std::string out =
      "Usage: criu dump|pre-dump -t PID -D DIR [OPTION]...\n"
      "       criu restore -D DIR [OPTION]...\n"
      "       criu check [--feature FEATURE]\n"
      "       criu dedup -D DIR\n"
      "       criu swrk FD\n"
      "This is ckpt in criu's place: man ckpt-criu\n\nOptions that do what they do in criu:\n";
  std::string ignored, refused;
  for (const Known& known : known_options()) {
    const std::string letter = known.letter == 0 ? "    " : fmt::format("-{}, ", known.letter);
    const std::string line = fmt::format("  {}--{}", letter, known.name);
    if (known.apply != nullptr)
      out += line + "\n";
    else if (known.refused)
      refused += line + "\n";
    else
      ignored += fmt::format("{:<32}{}\n", line, known.why);
  }
  return out + "\nAccepted, and of no effect:\n" + ignored + "\nRefused:\n" + refused;
}

}  // namespace ckpt::cli::criu
