#include "lib/state/files/extended_attributes.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>

#include "lib/base/unique_fd.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using ckpt::test::TempDir;

TEST_CASE("extended attributes: an image may claim none of the kernel's or of security modules'") {
  TempDir temp;
  const UniqueFd file(::open((temp.path / "file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  REQUIRE(file);
  for (const char* name : {"security.capability", "trusted.overlay.opaque", "security.selinux", "system.x", ""}) {
    const auto done = state::set_extended_attributes(file.get(), {{name, {1}}}, "file");
    REQUIRE_FALSE(done);
    CHECK(done.error().code == Code::kCorrupt);
  }
}

TEST_CASE("extended attributes: what was set is read, also an empty one") {
  TempDir temp;
  const UniqueFd file(::open((temp.path / "file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  const std::vector<store::ExtendedAttribute> wanted = {{"user.a", {1, 0, 2}}, {"user.b", {}}};
  REQUIRE(file);
  if (!state::set_extended_attributes(file.get(), wanted, "file")) {
    MESSAGE("skipped: no extended attributes in " << temp.path.string());
    return;
  }
  const auto found = state::read_extended_attributes(fmt::format("/proc/self/fd/{}", file.get()));
  REQUIRE(found);
  CHECK(found->size() == 2);
  for (const store::ExtendedAttribute& one : *found) CHECK((one == wanted[0] || one == wanted[1]));
}
