// criu's options, one row each: what becomes of it in ckpt.
#pragma once

#include <span>
#include <string>

#include "cli/criu/options.h"

namespace ckpt::cli::criu {

using Apply = Result<void> (*)(Options&, const std::string& value);

enum class Value { kNone, kRequired, kOptional };

/// One option of criu's. Without `apply` it changes nothing here (`why` says why), or is refused.
struct Known {
  const char* name;
  char letter;  ///< 0: none
  Value value;
  Apply apply;
  const char* why = nullptr;
  bool refused = false;
};

/// In the order of criu's help.
std::span<const Known> known_options();
/// By its long name; null: it is none of criu's.
const Known* find_option(const std::string& name);
/// kUnsupported: refused by its name, or for its value.
Result<void> apply(const Known& known, const std::string& value, Options& options);
/// kUsage: no number, or a large one.
Result<int> small_number(const std::string& text, const char* option);

inline constexpr const char* kNoServer =
    "images are not sent over the network; copy the folder, or put it on a share";

}  // namespace ckpt::cli::criu
