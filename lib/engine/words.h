// What the members of a job say to each other, as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/engine/together.h"

namespace ckpt::engine {

/// What one says at a step.
struct SpokenWord {
  std::string step;
  bool failed = false;
  Error error;       ///< if it did
  std::string data;  ///< else
};
std::string write_word(std::string_view step, const Result<void>& status, const std::string& data);
/// kCorrupt: it is none.
Result<SpokenWord> read_word(std::string_view text);

std::string write_ends(const std::vector<ConnectionEnd>& ends);
Result<std::vector<ConnectionEnd>> read_ends(std::string_view text);

/// The one member that `job` has.
std::string write_part(const store::Job& job);
Result<store::JobMember> read_part(std::string_view text);

}  // namespace ckpt::engine
