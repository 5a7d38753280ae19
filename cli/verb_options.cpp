#include "cli/verb_options.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>

#include "cli/saves.h"

namespace ckpt::cli {

VerbOption& VerbOption::required() {
  option_->required();
  return *this;
}

VerbOption& VerbOption::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

VerbOption& VerbOption::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

VerbOption& VerbOption::in_range(int64_t least, int64_t most) {
  option_->check(CLI::Range(least, most));
  return *this;
}

VerbOption& VerbOption::positive() {
  auto check = [](const std::string& text) {
    double value = 0;
    const bool is_number = CLI::detail::lexical_cast(text, value);
    return is_number && value > 0 ? std::string() : "'" + text + "' is not a number above zero";
  };
  option_->check(CLI::Validator(check, "POSITIVE"));
  return *this;
}

VerbOption& VerbOption::as_size() {
  option_->transform(CLI::AsSizeValue(false));
  return *this;
}

VerbOption& VerbOption::excludes(const VerbOption& other) {
  option_->excludes(other.option_);
  return *this;
}

VerbOption& VerbOption::delimiter(char c) {
  option_->delimiter(c);
  return *this;
}

VerbOption& VerbOption::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

VerbOption& VerbOption::shows_default() {
  option_->capture_default_str();
  return *this;
}

VerbOption& VerbOption::hidden() {
  option_->group("");
  return *this;
}

template <class T>
VerbOption VerbOptions::add_option(const std::string& names, T& variable, const std::string& help) {
  return VerbOption(app_.add_option(names, variable, help));
}

VerbOption VerbOptions::add_saved(const std::string& names, Saved wanted, std::string& variable,
                                  const std::string& help) {
  preparations_.push_back([&variable, wanted](Context& context) -> Result<void> {
    CKPT_TRY_ASSIGN(variable, resolve_saved(variable, wanted, context));
    return {};
  });
  return add_option(names, variable, help);
}

VerbOption VerbOptions::add_saved(const std::string& names, Saved wanted, std::filesystem::path& variable,
                                  const std::string& help) {
  preparations_.push_back([&variable, wanted](Context& context) -> Result<void> {
    CKPT_TRY_ASSIGN(variable, resolve_saved(variable.string(), wanted, context));
    return {};
  });
  return add_option(names, variable, help);
}

VerbOption VerbOptions::add_saved(const std::string& names, Saved wanted, std::vector<std::string>& variable,
                                  const std::string& help) {
  preparations_.push_back([&variable, wanted](Context& context) -> Result<void> {
    for (std::string& one : variable) {
      CKPT_TRY_ASSIGN(one, resolve_saved(one, wanted, context));
    }
    return {};
  });
  return add_option(names, variable, help);
}

VerbOption VerbOptions::add_flag(const std::string& names, bool& variable, const std::string& help) {
  return VerbOption(app_.add_flag(names, variable, help));
}

VerbOption VerbOptions::add_flag(const std::string& names, const std::string& help) {
  return VerbOption(app_.add_flag(names)->description(help));
}

VerbOption VerbOptions::add_ignored_value(const std::string& names, const std::string& help) {
  return VerbOption(app_.add_option(names, [](const CLI::results_t&) { return true; }, help));
}

VerbOption VerbOptions::add_optional_value(const std::string& names, const std::string& help) {
  return VerbOption(app_.add_option(
                            names, [](const CLI::results_t&) { return true; }, help)
                        ->expected(0, 1)
                        ->take_last()
                        ->type_name("[N]"));
}

VerbOption VerbOptions::add_optional_value(const std::string& names, bool& given, std::string& value,
                                           const std::string& help, const std::string& type_name) {
  CLI::callback_t take = [&given, &value](const CLI::results_t& words) {
    given = true;
    if (!words.empty()) value = words.back();
    return true;
  };
  return VerbOption(app_.add_option(names, take, help)->expected(0, 1)->take_last()->type_name(type_name));
}

template VerbOption VerbOptions::add_option(const std::string&, std::string&, const std::string&);
template VerbOption VerbOptions::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template VerbOption VerbOptions::add_option(const std::string&, std::filesystem::path&, const std::string&);
template VerbOption VerbOptions::add_option(const std::string&, int&, const std::string&);
template VerbOption VerbOptions::add_option(const std::string&, std::vector<int>&, const std::string&);
template VerbOption VerbOptions::add_option(const std::string&, unsigned&, const std::string&);
template VerbOption VerbOptions::add_option(const std::string&, uint64_t&, const std::string&);
template VerbOption VerbOptions::add_option(const std::string&, std::optional<uint64_t>&, const std::string&);
template VerbOption VerbOptions::add_option(const std::string&, double&, const std::string&);

}  // namespace ckpt::cli
