// The functions that the driver exports, as a table: what each index of a slot stands for.
#pragma once

#include <cstddef>
#include <string_view>

namespace ckpt::interposer {

struct Name {
  std::string_view function;
  int words;  ///< of parameters; -1: not a row of words
};
inline constexpr Name kNames[] = {
#define CKPT_NAME(function, words) {#function, words},
#include "plugins/interposer/names.inc"
#undef CKPT_NAME
};
inline constexpr size_t kNameCount = sizeof(kNames) / sizeof(kNames[0]);

/// Where `function` stands in the table (which is sorted); kNameCount: nowhere.
constexpr size_t index_of(std::string_view function) {
  size_t low = 0, high = kNameCount;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (kNames[middle].function < function) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < kNameCount && kNames[low].function == function ? low : kNameCount;
}

}  // namespace ckpt::interposer
