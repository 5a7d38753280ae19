#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/table.h"
#include "lib/base/text.h"
#include "lib/remote/mounted.h"

namespace ckpt::cli {

namespace {

std::string shown(std::string_view text) { return remote::with_urls(text).value_or(std::string(text)); }

}  // namespace

void Console::data(std::string_view text) {
  if (progress_ != nullptr) progress_->hide();
  const std::optional<std::string> named = remote::with_urls(text);
  if (named) text = *named;
  if (error_ == 0 && std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) error_ = errno;
  // A program that reads JSON lines wants each one when it is true.
  if (error_ == 0 && options_.json && std::fflush(stdout) != 0) error_ = errno;
}

bool Console::closed() const { return error_ == EPIPE; }

Result<void> Console::finish() {
  if (error_ == 0 && std::fflush(stdout) != 0) error_ = errno;
  if (error_ != 0 && error_ != EPIPE) return sys_error(error_, "stdout", "cannot write");
  return {};
}

void Console::verdict(const std::string& line) { data((color(stdout) ? with_verdict(line) : line) + "\n"); }

void Console::info(std::string_view line) {
  if (options_.quiet) return;
  if (progress_ != nullptr) progress_->hide();
  const std::string text = shown(line);
  if (!options_.json && options_.progress != "jsonl") {
    fmt::print(stderr, "{}\n", text);
    return;
  }
  // Who reads JSON from one stream or the other reads no prose beside it: the form of Progress::note.
  const nlohmann::ordered_json doc = {{"schema", "ckpt.progress/1"}, {"event", "note"}, {"text", text}};
  fmt::print(stderr, "{}\n", doc.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

namespace {

std::vector<std::vector<std::string>> escaped(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::vector<std::string>> out;
  for (const auto& row : rows) {
    auto& cells = out.emplace_back();
    for (const std::string& cell : row) cells.push_back(escape_for_terminal(shown(cell)));
  }
  return out;
}

}  // namespace

void Console::table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                    const std::vector<size_t>& right) {
  constexpr std::array kOfVerdicts = {"STATE", "HERE", "KIND", "VERDICT"};
  Table table{header, escaped(rows), right, {}};
  for (size_t i = 0; i < header.size() && color(stdout); ++i) {
    if (std::find(kOfVerdicts.begin(), kOfVerdicts.end(), header[i]) != kOfVerdicts.end()) table.verdicts.push_back(i);
  }
  for (const std::string& line : lay_out(table, terminal_columns(STDOUT_FILENO))) data(line + "\n");
}

void Console::info_table(const std::vector<std::vector<std::string>>& rows) {
  for (const std::string& line : lay_out({{}, escaped(rows), {}, {}}, terminal_columns(STDERR_FILENO))) info(line);
}

bool Console::color(std::FILE* stream) const {
  if (options_.color == "always") return true;
  if (options_.color == "never") return false;
  const char* no_color = std::getenv("NO_COLOR");
  return (no_color == nullptr || *no_color == 0) && ::isatty(::fileno(stream)) != 0;
}

void report_error(const Error& error, const GlobalOptions& options) {
  if (options.json) {
    nlohmann::json doc = {{"schema", "ckpt.error/1"},
                          {"code", exit_code(error.code)},
                          {"kind", code_name(error.code)},
                          {"message", shown(error.text())},
                          {"hint", error.hint},
                          {"target_state", error.target_state}};
    for (const std::string& cause : error.causes) doc["causes"].push_back(shown(cause));
    fmt::print(stderr, "{}\n", doc.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  bool color = Console(options).color(stderr);
  fmt::print(stderr, "{}ckpt:{} {}\n", color ? "\033[1;31m" : "", color ? "\033[0m" : "",
             escape_for_terminal(shown(error.text())));
  for (const std::string& cause : error.causes) fmt::print(stderr, "  {}\n", escape_for_terminal(shown(cause)));
  if (!error.target_state.empty()) fmt::print(stderr, "target: {}\n", escape_for_terminal(error.target_state));
  if (!error.hint.empty()) fmt::print(stderr, "hint: {}\n", escape_for_terminal(error.hint));
}

}  // namespace ckpt::cli
