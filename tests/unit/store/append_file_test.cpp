#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "lib/base/io.h"
#include "lib/base/unique_fd.h"
#include "lib/store/append_file.h"
#include "tests/unit/store/helpers.h"

using namespace ckpt;
using namespace ckpt::store;
using namespace ckpt::store::test;

namespace {

/// On whatever file system the tests run on; the other folder is in memory.
struct DiskDir {
  fs::path path;
  DiskDir() {
    std::string name = (fs::current_path() / "append-file-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~DiskDir() { fs::remove_all(path); }
};

bool takes_direct_writes(const fs::path& dir) {
  UniqueFd fd(::open((dir / "probe").c_str(), O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600));
  alignas(kPageSize) static std::byte page[kPageSize];
  return fd && ::pwrite(fd.get(), page, sizeof page, 0) == static_cast<ssize_t>(sizeof page);
}

size_t cached_pages(const fs::path& file) {
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  const size_t size = fs::file_size(file);
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  REQUIRE(at != MAP_FAILED);
  Mapping mapping(at, size);
  std::vector<unsigned char> there((size + kPageSize - 1) / kPageSize);
  REQUIRE(::mincore(at, size, there.data()) == 0);
  return static_cast<size_t>(std::count_if(there.begin(), there.end(), [](unsigned char c) { return (c & 1) != 0; }));
}

/// Pieces of all sizes, aligned now and then.
std::string write_pieces(AppendFile& file, size_t at_least) {
  std::string expected;
  Rng rng(9);
  while (expected.size() < at_least) {
    Bytes piece;
    for (size_t pages = rng() % 17; pages > 0; --pages) {
      Bytes page = random_page(rng());
      piece.insert(piece.end(), page.begin(), page.end());
    }
    piece.resize(piece.size() + rng() % 5000, std::byte{7});
    auto offset = file.append(piece);
    REQUIRE(offset);
    CHECK(*offset == expected.size());
    expected += as_text(piece);
    if (rng() % 2 == 0) {
      REQUIRE(file.align());
      expected.resize((expected.size() + kPageSize - 1) / kPageSize * kPageSize, '\0');
    }
    CHECK(file.size() == expected.size());
  }
  return expected;
}

}  // namespace

TEST_CASE("append file: what was appended is in the file, on a disk and in memory, however the pieces are cut") {
  TempDir memory;
  DiskDir disk;
  for (const fs::path& dir : {memory.path, disk.path}) {
    for (size_t size : {size_t{1}, size_t{1} << 20, size_t{5} << 20}) {
      const std::string name = "f" + std::to_string(size);
      auto file = AppendFile::create(dir, name, AppendFile::Kind::kPages);
      REQUIRE(file);
      const std::string expected = write_pieces(*file, size);
      REQUIRE(file->sync());
      CHECK(slurp(dir / name) == expected);
      REQUIRE(file->append(as_bytes("and more after a sync")));
      REQUIRE(file->sync());
      CHECK(slurp(dir / name) == expected + "and more after a sync");
    }
  }
}

TEST_CASE("append file: a large file does not stay in the page cache") {
  DiskDir disk;
  if (!takes_direct_writes(disk.path)) return;
  auto file = AppendFile::create(disk.path, "pages", AppendFile::Kind::kPages);
  REQUIRE(file);
  const size_t pages = write_pieces(*file, size_t{16} << 20).size() / kPageSize;
  REQUIRE(file->sync());
  CHECK(cached_pages(disk.path / "pages") < pages / 8);
}
