#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace ckpt::test {

/// A folder of its own, removed at the end: in memory where there is one, since hundreds of fsyncs take minutes on a
/// busy disk.
struct TempDir {
  std::filesystem::path path;
  TempDir() {
    std::error_code ec;
    auto where = std::filesystem::is_directory("/dev/shm", ec) ? std::filesystem::path("/dev/shm")
                                                               : std::filesystem::temp_directory_path();
    std::string name = (where / "ckpt-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
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
