#include "lib/base/staged_dir.h"

#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "lib/base/io.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using ckpt::test::TempDir;
namespace fs = std::filesystem;

namespace {

struct Scratch : TempDir {
  /// Names of the entries, sorted.
  std::vector<std::string> entries(const fs::path& below = {}) const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(path / below)) out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }
};

void put(const fs::path& file, std::string_view text) { REQUIRE(io::write_file(file, text)); }

std::string get(const fs::path& file) {
  auto text = io::read_file(file, 1000);
  return text ? *text : text.error().text();
}

/// Runs `body` in a child that is killed (SIGKILL) while it still holds what `body` returned.
template <class Body>
void in_killed_child(Body body) {
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto held = body();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
}

void stage(const fs::path& destination, std::string_view text, bool force = false) {
  auto staged = StagedDir::create(destination, force);
  REQUIRE(staged);
  put(staged->path() / "manifest", text);
  REQUIRE(staged->commit("manifest"));
}

}  // namespace

TEST_CASE("staged folder: nothing under the final name before commit, all of it afterwards, mode 0700") {
  Scratch scratch;
  const fs::path out = scratch.path / "image";
  {
    auto staged = StagedDir::create(out, false);
    REQUIRE(staged);
    put(staged->path() / "data", "bytes");
    put(staged->path() / "manifest", "whole");
    CHECK_FALSE(fs::exists(out));
    REQUIRE(staged->commit("manifest"));
  }
  CHECK(scratch.entries() == std::vector<std::string>{"image"});
  CHECK(scratch.entries("image") == std::vector<std::string>{"data", "manifest"});
  struct stat st{};
  REQUIRE(::stat(out.c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0700);
}

TEST_CASE("staged folder: going out of scope without a commit leaves nothing") {
  Scratch scratch;
  {
    auto staged = StagedDir::create(scratch.path / "image", false);
    REQUIRE(staged);
    put(staged->path() / "data", "bytes");
    StagedDir moved = std::move(*staged);
    CHECK(fs::exists(moved.path() / "data"));
  }
  CHECK(scratch.entries().empty());
}

TEST_CASE("staged folder: what a killed owner left is removed by the next one for the same destination") {
  Scratch scratch;
  in_killed_child([&] {
    auto staged = StagedDir::create(scratch.path / "image", false);
    if (staged) (void)io::write_file(staged->path() / "data", "half");
    return staged;
  });
  REQUIRE(scratch.entries().size() == 1);
  CHECK_FALSE(fs::exists(scratch.path / "image"));
  stage(scratch.path / "image", "whole");
  CHECK(scratch.entries() == std::vector<std::string>{"image"});
  CHECK(get(scratch.path / "image/manifest") == "whole");
}

TEST_CASE("staged folder: one that is still being written is left alone") {
  Scratch scratch;
  auto first = StagedDir::create(scratch.path / "image", false);
  REQUIRE(first);
  put(first->path() / "manifest", "first");
  auto second = StagedDir::create(scratch.path / "image", false);
  REQUIRE(second);
  CHECK(fs::exists(first->path() / "manifest"));
  CHECK(first->path() != second->path());
}

TEST_CASE("staged folder: an empty destination is used, one with content refused as usage, with a hint") {
  Scratch scratch;
  fs::create_directory(scratch.path / "image");
  stage(scratch.path / "image", "one");
  auto again = StagedDir::create(scratch.path / "image", false);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == Code::kUsage);
  CHECK(again.error().hint.find("--force") != std::string::npos);
  CHECK(get(scratch.path / "image/manifest") == "one");

  put(scratch.path / "file", "");
  auto over_file = StagedDir::create(scratch.path / "file", true);
  REQUIRE_FALSE(over_file);
  CHECK(over_file.error().code == Code::kUsage);
}

TEST_CASE("staged folder: force keeps the old content up to the commit and drops it then") {
  Scratch scratch;
  const fs::path out = scratch.path / "image";
  stage(out, "old");
  put(out / "more", "old");
  in_killed_child([&] {
    auto staged = StagedDir::create(out, true);
    if (staged) (void)io::write_file(staged->path() / "manifest", "half");
    return staged;
  });
  CHECK(get(out / "manifest") == "old");
  CHECK(scratch.entries().size() == 2);
  stage(out, "new", true);
  CHECK(get(out / "manifest") == "new");
  CHECK(scratch.entries() == std::vector<std::string>{"image"});
  CHECK(scratch.entries("image") == std::vector<std::string>{"manifest"});
}

TEST_CASE("staged folder: missing folders above it are made, and removed again when nothing comes of it") {
  Scratch scratch;
  CHECK(StagedDir::create(scratch.path / "no/such/image", false));
  CHECK(scratch.entries().empty());
  stage(scratch.path / "no/such/image", "there");
  CHECK(get(scratch.path / "no/such/image/manifest") == "there");
  CHECK(scratch.entries() == std::vector<std::string>{"no"});
  put(scratch.path / "file", "x");
  CHECK_FALSE(StagedDir::create(scratch.path / "file/below/image", false));
}

TEST_CASE("staged folder: where those above it are to be there none is made") {
  Scratch scratch;
  const auto create = [&](const char* name) {
    return StagedDir::create(scratch.path / name, true, StagedDir::Kind::kFolder, StagedDir::Above::kThere);
  };
  const auto gone = create("gone/image");
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == Code::kNotFound);
  CHECK(scratch.entries().empty());
  CHECK(create("image"));
}

TEST_CASE("staged folder: a trailing slash and a link to a folder are fine") {
  Scratch scratch;
  stage(scratch.path / "image/", "slash");
  CHECK(get(scratch.path / "image/manifest") == "slash");

  fs::create_directory(scratch.path / "real");
  fs::create_directory_symlink("real", scratch.path / "link");
  stage(scratch.path / "link", "linked");
  CHECK(get(scratch.path / "real/manifest") == "linked");
  CHECK(fs::is_symlink(scratch.path / "link"));

  fs::create_symlink("nowhere", scratch.path / "dangling");
  auto dangling = StagedDir::create(scratch.path / "dangling", false);
  REQUIRE_FALSE(dangling);
  CHECK(dangling.error().code == Code::kUsage);
}

TEST_CASE("staged folder: a mount point is filled from inside, the commit point last") {
  Scratch scratch;
  const fs::path mount = scratch.path / "mount";
  fs::create_directory(mount);
  if (::mount("tmpfs", mount.c_str(), "tmpfs", 0, "size=1m") != 0) {
    ckpt::test::skip("mounting a tmpfs needs privileges");
    return;
  }
  {
    auto staged = StagedDir::create(mount, false);
    REQUIRE(staged);
    put(staged->path() / "data", "bytes");
    put(staged->path() / "manifest", "whole");
    CHECK_FALSE(fs::exists(mount / "manifest"));
    REQUIRE(staged->commit("manifest"));
  }
  CHECK(scratch.entries("mount") == std::vector<std::string>{"data", "manifest"});
  auto again = StagedDir::create(mount, true);
  CHECK_FALSE(again);

  // A disk that fills up is said as such, and nothing stays.
  fs::remove(mount / "data");
  fs::remove(mount / "manifest");
  {
    auto staged = StagedDir::create(mount, false);
    REQUIRE(staged);
    Result<void> full = io::write_file(staged->path() / "data", std::string(2 << 20, 'x'));
    REQUIRE_FALSE(full);
    CHECK(full.error().code == Code::kNoRoom);
  }
  CHECK(scratch.entries("mount").empty());
  REQUIRE(::umount(mount.c_str()) == 0);
}
