// "1 tensor", "2 tensors".
#pragma once

#include <cstdint>
#include <string>

namespace ckpt::cli {

/// `many`: where it is not the word and an s.
inline std::string counted(uint64_t count, const std::string& one, const std::string& many = "") {
  return std::to_string(count) + " " + (count == 1 ? one : many.empty() ? one + "s" : many);
}

}  // namespace ckpt::cli
