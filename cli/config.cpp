#include "cli/config.h"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <cstdlib>

#include "lib/base/io.h"
#include "lib/base/text.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kMaxConfigBytes = 1 << 20;

std::string_view trim(std::string_view s) {
  size_t first = s.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(" \t\r") - first + 1);
}

/// A value in quotes, or a bare one up to a comment; nothing where a quote is not closed or something follows it.
std::optional<std::string> parse_value(std::string_view s) {
  if (s.empty() || (s[0] != '"' && s[0] != '\'')) return std::string(trim(s.substr(0, s.find('#'))));
  size_t end = s.find(s[0], 1);
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view rest = trim(s.substr(end + 1));
  if (!rest.empty() && rest[0] != '#') return std::nullopt;
  return std::string(s.substr(1, end - 1));
}

struct ConfigPath {
  std::string path;
  bool required = false;  ///< named by the user: it must be there
};

ConfigPath config_path() {
  if (const char* named = std::getenv("CKPT_CONFIG")) return {named, true};
  const char* xdg = std::getenv("XDG_CONFIG_HOME");
  if (xdg != nullptr && *xdg == '/') return {std::string(xdg) + "/ckpt/config.toml", false};
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return {std::string(home) + "/.config/ckpt/config.toml", false};
  return {};
}

Result<void> set_default(CLI::Option& option, const std::string& value, const std::string& subject, Origins& origins) {
  try {
    option.run_callback_for_default()->default_val(value);
  } catch (const CLI::Error& e) {
    return fail(Code::kUsage, subject, e.what());
  }
  option.required(false);
  origins[&option] = subject;
  return {};
}

/// A flag that is set to false is as good as none.
bool is_set(const CLI::Option& option, const Origins& origins) {
  if (option.count() > 0) return option.get_expected_max() != 0 || option.as<bool>();
  return origins.count(&option) != 0 &&
         (option.get_expected_max() != 0 || CLI::detail::to_flag_value(option.get_default_str()) > 0);
}

/// The App that a section's settings belong to; null where no verb has that name.
CLI::App* owner_of(CLI::App& app, const std::string& section) {
  if (section.empty()) return &app;
  for (CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == section) return verb;
  }
  return nullptr;
}

/// It can name programs to run. HOME may be another user's (su, sudo -E).
bool belongs_to_us(int fd, const ConfigPath& config) {
  auto st = io::stat_fd(fd, config.path);
  return st && (st->st_uid == 0 || st->st_uid == ::geteuid()) && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

Result<void> apply_file(CLI::App& app, const ConfigPath& config, Origins& origins) {
  // Whoever names a pipe here means it.
  auto file = io::open_file(config.path, O_RDONLY);
  if (file && !belongs_to_us(file->get(), config)) {
    if (config.required)
      return fail(Code::kPermission, config.path, "belongs to another user, or others may write it: it is not read");
    fmt::print(stderr, "ckpt: {} belongs to another user, or others may write it: it is not read\n",
               escape_for_terminal(config.path));
    return {};
  }
  auto text = file ? io::read_all(file->get(), kMaxConfigBytes, config.path) : Result<std::string>(file.error());
  if (!text) {
    // Nobody asked for the default one: where it cannot be read (HOME is another user's, under su) there is none.
    bool absent = text.error().code == Code::kNotFound || text.error().code == Code::kPermission;
    if (absent && !config.required) return {};
    return std::move(text).error();
  }
  CKPT_TRY_ASSIGN(std::vector<Setting> settings, parse_config(*text, config.path));
  for (const Setting& setting : settings) {
    const std::string subject = fmt::format("{}:{}", config.path, setting.line);
    CLI::App* owner = owner_of(app, setting.section);
    if (owner == nullptr) return fail(Code::kUsage, subject, fmt::format("no verb is called '{}'", setting.section));
    CLI::Option* option = owner->get_option_no_throw("--" + setting.key);
    if (option == nullptr || option == owner->get_help_ptr()) {
      return fail(Code::kUsage, subject, fmt::format("no option is called '{}'", setting.key));
    }
    CKPT_TRY(set_default(*option, setting.value, subject, origins));
  }
  return {};
}

std::string variable_of(const std::string& verb, const std::string& option) {
  std::string out = verb.empty() ? "CKPT_" + option : "CKPT_" + verb + "_" + option;
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

Result<void> apply_variables(CLI::App& app, const std::string& verb, Origins& origins) {
  for (CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr() || option->get_name() == "--version") continue;
    for (const std::string& name : option->get_lnames()) {
      const std::string variable = variable_of(verb, name);
      const char* value = std::getenv(variable.c_str());
      if (value != nullptr && *value != 0) CKPT_TRY(set_default(*option, value, variable, origins));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<Setting>> parse_config(std::string_view text, const std::string& subject) {
  std::vector<Setting> out;
  std::string section;
  int number = 0;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const std::string where = fmt::format("{}:{}", subject, number);
    if (line.empty() || line[0] == '#') continue;
    if (line[0] == '[') {
      size_t close = line.find(']');
      std::string_view rest = close == std::string_view::npos ? "?" : trim(line.substr(close + 1));
      if (!rest.empty() && rest[0] != '#') return fail(Code::kUsage, where, "a section reads [verb]");
      section = trim(line.substr(1, close - 1));
      continue;
    }
    size_t equals = line.find('=');
    if (equals == std::string_view::npos) return fail(Code::kUsage, where, "a setting reads key = value");
    std::optional<std::string> value = parse_value(trim(line.substr(equals + 1)));
    std::string_view key = trim(line.substr(0, equals));
    if (!value || value->empty() || key.empty()) return fail(Code::kUsage, where, "a setting reads key = value");
    out.push_back({section, std::string(key), *std::move(value), number});
  }
  return out;
}

Result<Origins> apply_defaults(CLI::App& app) {
  Origins origins;
  const ConfigPath config = config_path();
  if (!config.path.empty()) CKPT_TRY(apply_file(app, config, origins));
  CKPT_TRY(apply_variables(app, "", origins));
  for (CLI::App* verb : app.get_subcommands({})) CKPT_TRY(apply_variables(*verb, verb->get_name(), origins));
  return origins;
}

Result<void> check_exclusions(const CLI::App& verb, const Origins& origins) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() > 0 || !is_set(*option, origins)) continue;
    for (const CLI::Option* other : option->get_excludes()) {
      if (!is_set(*other, origins)) continue;
      return fail(Code::kUsage, origins.at(option),
                  fmt::format("sets {}, which does not go with {}", option->get_name(), other->get_name()));
    }
  }
  return {};
}

}  // namespace ckpt::cli
