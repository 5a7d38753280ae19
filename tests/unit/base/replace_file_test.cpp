#include "lib/base/replace_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <vector>

#include "lib/base/io.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
namespace fs = std::filesystem;

TEST_CASE(
    "a replaced file: its mode is a new file's, links are replaced, a failure leaves the old one and nothing else") {
  test::TempDir dir;
  const fs::path path = dir.path / "file", other = dir.path / "other";
  auto entries = [&] { return std::distance(fs::directory_iterator(dir.path), fs::directory_iterator()); };
  auto mode = [&] {
    struct stat st {};
    REQUIRE(::lstat(path.c_str(), &st) == 0);
    return st.st_mode;
  };
  const mode_t mask = ::umask(022);
  for (const bool durable : {false, true}) {
    REQUIRE(io::replace_file(path, "one", {0666, durable}));
    CHECK(mode() == (S_IFREG | 0644));
    REQUIRE(io::replace_file(path, "two", {0600, durable}));
    CHECK(mode() == (S_IFREG | 0600));
    CHECK(*io::read_file(path, 100) == "two");
    CHECK(entries() == 1);
    fs::remove(path);
  }
  ::umask(mask);
  std::ofstream(other) << "untouched";
  fs::create_symlink(other, path);
  REQUIRE(io::replace_file(path, "three"));
  CHECK(S_ISREG(mode()));
  CHECK(*io::read_file(other, 100) == "untouched");

  const Result<void> failed = io::replace_file(path, [&](int fd) -> Result<void> {
    CHECK(io::write_all(fd, as_bytes("half"), ""));
    CHECK(entries() == 3);
    return fail(Code::kNoRoom, "", "");
  });
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == Code::kNoRoom);
  CHECK(*io::read_file(path, 100) == "three");
  CHECK(entries() == 2);
  CHECK_FALSE(io::replace_file(dir.path / "no" / "folder", "x"));
  fs::create_directory(dir.path / "folder");
  CHECK_FALSE(io::replace_file(dir.path / "folder", "x"));
  CHECK(entries() == 3);
}

TEST_CASE("a replaced file: a name without a folder is of the working folder") {
  test::TempDir dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path);
  const Result<void> done = io::replace_file("plain", "x");
  fs::current_path(before);
  REQUIRE(done);
  CHECK(*io::read_file(dir.path / "plain", 10) == "x");
}

TEST_CASE("a replaced file: what a killed run left goes, what another writer has begun stays his") {
  test::TempDir dir;
  const fs::path path = dir.path / "file";
  auto drafts = [&] {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(dir.path)) {
      if (entry.path() != path) out.push_back(entry.path());
    }
    return out;
  };
  if (const pid_t child = ::fork(); child == 0) {
    (void)io::replace_file(path, [](int fd) -> Result<void> {
      (void)io::write_all(fd, as_bytes("half"), "");
      ::raise(SIGKILL);
      return {};
    });
    ::_exit(0);
  } else {
    REQUIRE(::waitpid(child, nullptr, 0) == child);
  }
  REQUIRE(drafts().size() == 1);
  const fs::path left = drafts().front();
  CHECK(*io::read_file(left, 10) == "half");

  // The outer one has the name, and the inner one does without; whoever is last has the say, each wholly.
  REQUIRE(io::replace_file(path, [&](int outer) -> Result<void> {
    CHECK(drafts() == std::vector{left});
    CKPT_TRY(io::replace_file(path, [&](int inner) {
      CHECK(drafts().size() == 2);
      return io::write_all(inner, as_bytes("inner"), "");
    }));
    CHECK(*io::read_file(path, 10) == "inner");
    return io::write_all(outer, as_bytes("outer"), "");
  }));
  CHECK(*io::read_file(path, 10) == "outer");
  CHECK(drafts().empty());

  const fs::path other = dir.path / "other";
  REQUIRE(io::write_file(other, "untouched"));
  fs::create_symlink(other, left);  // the name is taken: by a link, then by a folder
  REQUIRE(io::replace_file(path, "beside a link"));
  CHECK(*io::read_file(other, 10) == "untouched");
  fs::remove(left);
  fs::create_hard_link(other, left);
  REQUIRE(io::replace_file(path, "beside a hard link"));
  CHECK(*io::read_file(other, 10) == "untouched");
  fs::create_directory(left);
  REQUIRE(io::replace_file(path, "beside a folder"));
  CHECK(fs::is_directory(left));
  CHECK(*io::read_file(path, 20) == "beside a folder");
}
