// Many saves side by side in one folder: the steps in their names, which one is the newest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::schedule {

/// The number that a save's name ends with, before an extension: 100 of iter_0000100, global_step100, checkpoint-100,
/// step-100, epoch=3-step=100.ckpt, 100. Nothing: it ends otherwise, or the number is beyond 18 digits.
std::optional<uint64_t> step_of(std::string_view name);
/// Whether trainers give such names to saves, whatever lies in one: a folder of it that holds no checkpoint is one that
/// was not finished, or has been taken away in part.
bool is_step_name(std::string_view name);

/// The files in which trainers say which save was committed last.
std::span<const char* const> tracker_names();
/// What one says: a step, or a name ("release", "global_step100", whose step is told, too). Nothing: neither.
struct Committed {
  std::string name;
  std::optional<uint64_t> step;
};
std::optional<Committed> parse_tracker(std::string_view text);

/// One save of several.
struct Candidate {
  std::string name;   ///< of the entry
  std::string order;  ///< of two the newer one has the greater: a time, or a step as `order_of` writes it
};
std::string order_of(uint64_t step);

struct Choice {
  std::string name;
  std::vector<std::string> skipped;  ///< newer ones, each with the reason, in a line
};
/// The newest that `check` finds complete, from the newest on. kUsage: two of the same order are, and nothing says
/// which is meant. kNotFound: none is; the causes name them.
Result<Choice> choose_newest(const std::string& folder, std::vector<Candidate> candidates,
                             const std::function<Result<void>(const Candidate&)>& check);

/// `DIR@latest`, `DIR@100`. Nothing: the text has no such end.
struct At {
  std::string folder;
  std::optional<uint64_t> step;  ///< nothing: the latest
};
std::optional<At> parse_at(const std::string& text);

}  // namespace ckpt::schedule
