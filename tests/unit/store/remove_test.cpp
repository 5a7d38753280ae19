#include <doctest/doctest.h>

#include "lib/store/find_images.h"
#include "lib/store/remove.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

constexpr uint64_t kRemoveBase = 0x10000;

/// below/a <- below/b <- below/c, and elsewhere/d that has below/a as its parent, too.
struct Family {
  TempDir temp;
  fs::path a = temp.path / "below" / "a", b = temp.path / "below" / "b", c = temp.path / "below" / "c",
           d = temp.path / "elsewhere" / "d";
  Family() {
    const Pages from_parent = {{kRemoveBase, {Page::kParent, {}}}};
    REQUIRE(write_image(a, {{kRemoveBase, {Page::kData, random_page(1)}}}));
    REQUIRE(write_image(b, from_parent, a));
    REQUIRE(write_image(c, from_parent, b));
    REQUIRE(write_image(d, from_parent, a));
  }
  Result<std::vector<RemovedImage>> remove(const std::vector<fs::path>& dirs, RemoveOptions options = {}) {
    return remove_images(dirs, options, null_progress(), Cancel());
  }
  void refused(const fs::path& dir, Code code, const std::string& names) {
    auto result = remove({dir});
    REQUIRE_FALSE(result);
    CHECK(result.error().code == code);
    CHECK_MESSAGE(why(result).find(names) != std::string::npos, why(result));
  }
  bool whole(const fs::path& dir) {
    auto reader = ImageReader::open(dir);
    return reader && *read_memory(**reader) == Memory{{kRemoveBase, random_page(1)}};
  }
};

}  // namespace

TEST_CASE("remove: an image that another needs is refused, wherever that one lies") {
  Family family;
  family.refused(family.b, Code::kUsage, family.c.string());
  REQUIRE(family.remove({family.c}));
  REQUIRE(family.remove({family.b}));
  CHECK_FALSE(fs::exists(family.b));
  family.refused(family.a, Code::kUsage, family.d.string());  // known by its link alone
  CHECK(family.whole(family.d));
  REQUIRE(family.remove({family.d}));
  CHECK(fs::is_empty(family.a / "children"));
  REQUIRE(family.remove({family.a}));
  CHECK(fs::is_empty(family.temp.path / "below"));
}

TEST_CASE("remove: without links the images below the folder that holds it are looked at; a moved child is still one") {
  Family family;
  fs::remove_all(family.a / "children");
  family.refused(family.a, Code::kUsage, family.b.string());
  fs::create_directories(family.temp.path / "below" / "x" / "y");
  fs::rename(family.b, family.temp.path / "below" / "x" / "y" / "b");  // its parent is nowhere now
  family.refused(family.a, Code::kUsage, "x/y/b");
}

TEST_CASE("remove: a child that is gone or has another parent now does not count") {
  Family family;
  fs::remove_all(family.d);
  fs::remove_all(family.c);
  // The chain moves as a whole: the copy's parent is the copy.
  fs::copy(family.temp.path / "below", family.temp.path / "copy",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::rename(family.temp.path / "copy", family.temp.path / "below" / "copy");
  fs::remove_all(family.b);
  REQUIRE(family.remove({family.a}));
  CHECK(family.whole(family.temp.path / "below" / "copy" / "b"));
}

TEST_CASE(
    "remove: children go before their parents, a chain by its last image, what is needed only by force, nothing on "
    "-n") {
  Family family;
  RemoveOptions chain;
  chain.chain = true;
  auto refused = family.remove({family.c}, chain);
  REQUIRE_FALSE(refused);
  CHECK(why(refused).find(family.d.string()) != std::string::npos);
  CHECK(family.whole(family.c));

  chain.dry_run = true;
  auto planned = family.remove({family.c, family.d}, chain);
  REQUIRE_MESSAGE(planned, why(planned));
  CHECK(planned->size() == 4);
  CHECK(family.whole(family.c));
  CHECK(family.whole(family.d));

  auto order = family.remove({family.a, family.c, family.a, family.b, family.d});
  REQUIRE_MESSAGE(order, why(order));
  REQUIRE(order->size() == 4);
  CHECK(order->back().dir.filename() == "a");
  CHECK(order->back().bytes > kPageSize);
  CHECK(fs::is_empty(family.temp.path / "below"));

  Family other;
  RemoveOptions force;
  force.force = true;
  REQUIRE(other.remove({other.a}, force));
  CHECK_FALSE(other.whole(other.b));
}

TEST_CASE("remove: only an image's own files go, links are not followed, and what is no image stays") {
  Family family;
  const fs::path precious = family.temp.path / "precious";
  spit(precious, "content");
  fs::create_symlink(precious, family.c / "pages.1");
  spit(family.c / "notes", "mine");
  fs::create_symlink(family.c, family.temp.path / "link");
  family.refused(family.temp.path / "link", Code::kUsage, "symbolic link");
  family.refused(family.temp.path / "link" / "", Code::kUsage, "symbolic link");
  family.refused(family.temp.path / "below", Code::kNotFound, "no image");
  family.refused(family.temp.path / "none", Code::kNotFound, "no such folder");
  auto removed = family.remove({family.c});
  REQUIRE_MESSAGE(removed, why(removed));
  CHECK(removed->front().folder_left);
  CHECK(slurp(precious) == "content");
  CHECK(slurp(family.c / "notes") == "mine");
  CHECK(std::distance(fs::directory_iterator(family.c), fs::directory_iterator()) == 1);
  REQUIRE(family.remove({family.b}));
}

TEST_CASE("remove: a half-removed image is none, and the rest of it can be removed") {
  Family family;
  fs::remove(family.c / "manifest.json");
  CHECK_FALSE(ImageReader::open(family.c));
  auto removed = family.remove({family.c});
  REQUIRE_MESSAGE(removed, why(removed));
  CHECK_FALSE(fs::exists(family.c));
}

TEST_CASE("remove: a parent is busy while an image that refers to it is written") {
  Family family;
  ImageWriter::Options options;
  options.parent = family.c;
  {
    auto writer = ImageWriter::create(family.temp.path / "e", options);
    REQUIRE(writer);
    family.refused(family.c, Code::kBusy, "being written");
    Manifest manifest = small_manifest();
    REQUIRE((*writer)->commit(manifest));
  }
  family.refused(family.c, Code::kUsage, "/e");
}
