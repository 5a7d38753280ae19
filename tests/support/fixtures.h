// The fixtures beside the checkout: used where they are there, skipped by name where they are not.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "tests/support/temp_dir.h"

namespace ckpt::test {

extern const char* const kSourceDir;

/// Those that tests have asked for in vain: the program then ends as skipped (doctest_main.cpp).
inline std::set<std::string>& missing_fixtures() {
  static std::set<std::string> names;
  return names;
}

/// `../shared/fixtures/<name>`, or nothing.
inline std::optional<std::filesystem::path> fixture(const std::string& name) {
  std::filesystem::path path = std::filesystem::path(kSourceDir) / "../shared/fixtures" / name;
  std::error_code ec;
  if (std::filesystem::exists(path, ec)) return path;
  missing_fixtures().insert(name);
  return std::nullopt;
}

}  // namespace ckpt::test
