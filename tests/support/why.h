// What an error says, for messages of tests.
#pragma once

#include <string>

#include "lib/base/result.h"

namespace ckpt {

/// With its causes.
inline std::string why(const Error& error) {
  std::string out = error.text();
  for (const std::string& cause : error.causes) out += "; " + cause;
  return out;
}
template <class T>
std::string why(const Result<T>& result) {
  return result ? "no error" : why(result.error());
}

}  // namespace ckpt
