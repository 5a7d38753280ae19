#include <doctest/doctest.h>
#include <sys/mount.h>

#include "tests/support/skip.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

/// A tmpfs of a given size, where the user may mount one.
struct SmallDisk {
  TempDir temp;
  bool mounted = false;
  explicit SmallDisk(const char* options) {
    mounted = ::mount("none", temp.path.c_str(), "tmpfs", 0, options) == 0;
    if (!mounted) ckpt::test::skip("mounting a tmpfs needs root");
  }
  ~SmallDisk() {
    if (mounted) ::umount(temp.path.c_str());
  }
};

Pages noise(uint64_t blocks) {
  Pages out;
  for (uint64_t i = 0; i < blocks * kBlockPages; ++i) out[0x10000 + i * kPageSize] = {Page::kData, random_page(i)};
  return out;
}

}  // namespace

TEST_CASE("full disk: the writer says no room and leaves nothing") {
  SmallDisk disk("size=1m");
  if (!disk.mounted) return;
  {
    auto writer = ImageWriter::create(disk.temp.path / "a", {});
    REQUIRE(writer);
    auto added = add_pages(**writer, noise(20));
    REQUIRE_FALSE(added);
    CHECK(added.error().code == Code::kNoRoom);
    CHECK_FALSE((*writer)->add_block({}));
    Manifest manifest = small_manifest();
    CHECK_FALSE((*writer)->commit(manifest));
  }
  CHECK(fs::is_empty(disk.temp.path));
}

TEST_CASE("full disk: room for the pages but not for what commit writes leaves nothing either") {
  // 15 blocks and what create makes fill the disk to the last pages; the page map is 752 bytes, the manifest more.
  for (int blocks : {13, 14, 15}) {
    SmallDisk disk("size=1m");
    if (!disk.mounted) return;
    bool committed = false;
    {
      auto writer = ImageWriter::create(disk.temp.path / "a", {});
      REQUIRE(writer);
      REQUIRE((*writer)->append_xstate(Bytes(static_cast<size_t>(15 - blocks) * kBlockSize + 60 * 1024, std::byte{1})));
      auto added = add_pages(**writer, noise(static_cast<uint64_t>(blocks)));
      REQUIRE_MESSAGE(added, why(added));
      Manifest manifest = small_manifest();
      auto result = (*writer)->commit(manifest);
      committed = result.has_value();
      if (!result) CHECK(result.error().code == Code::kNoRoom);
    }
    CHECK_FALSE(committed);
    CHECK(fs::is_empty(disk.temp.path));
  }
}
