#include "lib/base/run_folder.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/temp_dir.h"

using namespace ckpt;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kNobodyElse = 61234;

std::string place_of(const Result<UniqueFd>& folder) {
  return folder ? fs::read_symlink("/proc/self/fd/" + std::to_string(folder->get())).string() : folder.error().text();
}

/// As a user who is not root: whether both are what they should be.
bool look(const std::string& runtime) {
  if (::geteuid() == 0 && ::setresuid(kNobodyElse, kNobodyElse, kNobodyElse) != 0) return false;
  const std::string common = "/tmp/ckpt-" + std::to_string(::geteuid());
  ::setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
  const bool with = place_of(open_run_folder()) == runtime + "/ckpt" && place_of(open_common_run_folder()) == common;
  ::unsetenv("XDG_RUNTIME_DIR");
  return with && place_of(open_common_run_folder()) == common;
}

}  // namespace

TEST_CASE("run folders: what another session has to find does not depend on the environment") {
  const ckpt::test::TempDir dir;
  const std::string runtime = (dir.path / "runtime").string();
  REQUIRE(fs::create_directory(runtime));
  if (::geteuid() == 0) {
    REQUIRE(::chmod(dir.path.c_str(), 0755) == 0);
    REQUIRE(::chown(runtime.c_str(), kNobodyElse, kNobodyElse) == 0);
  }
  const pid_t child = ::fork();
  if (child == 0) ::_exit(look(runtime) ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  if (::geteuid() == 0) fs::remove_all("/tmp/ckpt-" + std::to_string(kNobodyElse));
}
