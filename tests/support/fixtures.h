// The fixtures beside the checkout: used where they are there, skipped by name where they are not.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <string>

namespace ckpt::test {

/// `../shared/fixtures/<name>`, or nothing (and a line that says so).
inline std::optional<std::filesystem::path> fixture(const std::string& name) {
  std::filesystem::path path = std::filesystem::path(CKPT_SOURCE_DIR) / "../shared/fixtures" / name;
  std::error_code ec;
  if (std::filesystem::exists(path, ec)) return path;
  MESSAGE("skipped: the fixture ", name, " is not there");
  return std::nullopt;
}

struct TempDir {
  std::filesystem::path path;
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "ckpt-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ec;
    std::filesystem::remove_all(path, ec);
  }
};

}  // namespace ckpt::test
