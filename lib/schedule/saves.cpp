#include "lib/schedule/saves.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace ckpt::schedule {

namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr size_t kMostDigits = 18;

std::optional<uint64_t> number(std::string_view digits) {
  if (digits.empty() || digits.size() > kMostDigits || digits.find_first_not_of(kDigits) != std::string_view::npos)
    return std::nullopt;
  uint64_t out = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), out);
  return out;
}

/// Without an extension that is none of digits: "step=100.ckpt", but not "v1.100".
std::string_view stem(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return name;
  const bool is_number = name.substr(dot + 1).find_first_not_of(kDigits) == std::string_view::npos;
  return is_number ? name : name.substr(0, dot);
}

/// What stands before the number.
std::string_view before_number(std::string_view name) {
  const std::string_view own = stem(name);
  const size_t last = own.find_last_not_of(kDigits);
  return last == std::string_view::npos ? std::string_view() : own.substr(0, last + 1);
}

}  // namespace

std::optional<uint64_t> step_of(std::string_view name) { return number(stem(name).substr(before_number(name).size())); }

bool is_step_name(std::string_view name) {
  static constexpr std::array<std::string_view, 10> kWords = {
      "", "iter_", "iter-", "global_step", "checkpoint-", "checkpoint_", "step", "step_", "step-", "step="};
  if (!step_of(name)) return false;
  const std::string_view word = before_number(name);
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end() || word.ends_with("step=");
}

std::span<const char* const> tracker_names() {
  // Of ckpt's own agent, DLRover, Megatron, DeepSpeed.
  static constexpr std::array kNames = {"LATEST", "dlrover_latest.txt", "latest_checkpointed_iteration.txt", "latest"};
  return kNames;
}

std::optional<Committed> parse_tracker(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return std::nullopt;
  text = text.substr(first, text.find_first_of(" \t\r\n", first) - first);
  if (text.find('/') != std::string_view::npos || text.starts_with('.') || text.size() > 255) return std::nullopt;
  return Committed{std::string(text), step_of(text)};
}

std::string order_of(uint64_t step) { return fmt::format("{:020}", step); }

Result<Choice> choose_newest(const std::string& folder, std::vector<Candidate> candidates,
                             const std::function<Result<void>(const Candidate&)>& check) {
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.order != b.order ? a.order > b.order : a.name < b.name;
  });
  Choice out;
  for (size_t i = 0; i < candidates.size();) {
    size_t end = i;
    for (; end < candidates.size() && candidates[end].order == candidates[i].order; ++end) {
      Result<void> complete = check(candidates[end]);
      if (!complete) {
        out.skipped.push_back(candidates[end].name + ": " + complete.error().message);
      } else if (out.name.empty()) {
        out.name = candidates[end].name;
      } else {
        return Error(Code::kUsage, folder,
                     fmt::format("has two that are the newest, {} and {}", out.name, candidates[end].name))
            .with_hint("name one of them");
      }
    }
    if (!out.name.empty()) return out;
    i = end;
  }
  Error error(Code::kNotFound, folder, "holds none that is complete");
  error.causes = std::move(out.skipped);
  return error;
}

std::optional<At> parse_at(const std::string& text) {
  const size_t at = text.rfind('@');
  if (at == std::string::npos) return std::nullopt;
  const std::string_view end = std::string_view(text).substr(at + 1);
  const std::string folder = at == 0 ? "." : text.substr(0, at);
  if (end == "latest") return At{folder, std::nullopt};
  const auto step = number(end);
  return step ? std::optional<At>(At{folder, *step}) : std::nullopt;
}

}  // namespace ckpt::schedule
