// What somebody may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ckpt::cli {

/// The candidate that is fewest typing errors (a letter more, less, another, two swapped) away from `word`, the first
/// of several; empty where none is near: one error in three letters at most. What `word` is the beginning of counts as
/// near, if it is alone.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace ckpt::cli
