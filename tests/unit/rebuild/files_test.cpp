#include "lib/rebuild/files.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace ckpt;
using namespace ckpt::rebuild;
using store::DescriptorKind;
using store::MappingKind;
namespace fs = std::filesystem;

namespace {

class Notes final : public ProgressSink {
 public:
  void begin(std::string_view, uint64_t) override {}
  void advance(uint64_t) override {}
  void note(std::string_view text) override { all += std::string(text) + "\n"; }
  std::string all;
};

/// A folder with one file, and an image that refers to it.
struct World {
  World() {
    std::string pattern = (fs::temp_directory_path() / "ckpt-files-XXXXXX").string();
    dir = ::mkdtemp(pattern.data());
    path = dir / "data";
    std::ofstream(path) << "0123456789";
    struct stat st{};
    ::stat(path.c_str(), &st);
    store::FileIdentity file;
    file.path = path.string();
    file.device = st.st_dev, file.inode = st.st_ino, file.size = 10, file.mode = st.st_mode;
    file.mtime_ns = int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
    image.files = {file};
    image.processes.resize(1);
  }
  ~World() { fs::remove_all(dir); }

  void open_with(int flags, uint64_t offset) {
    store::Descriptor descriptor;
    descriptor.fds = {{0, 3, false}};
    descriptor.file = 0, descriptor.flags = flags, descriptor.offset = offset;
    descriptor.written_by_process = (flags & O_ACCMODE) != O_RDONLY;
    image.descriptors = {descriptor};
  }
  Result<void> check() {
    inherited = Inherited::create(image);
    Reasons reasons;
    opened = open_files(image, *inherited, reasons, notes);
    return reasons.verdict("image");
  }
  Code code() {
    auto result = check();
    REQUIRE_FALSE(result);
    CHECK(result.error().text().find(path.string()) != std::string::npos);
    return result.error().code;
  }

  fs::path dir, path;
  store::TreeImage image;
  Notes notes;
  Result<Inherited> inherited = Error();
  OpenedFiles opened;
};

}  // namespace

TEST_CASE("files: one that is as it was is opened again, above every number of the process, at its offset") {
  World world;
  world.open_with(O_RDONLY, 4);
  REQUIRE(world.check());
  int fd = world.opened.descriptors.at(0);
  CHECK(fd > 3);
  CHECK(::lseek(fd, 0, SEEK_CUR) == 4);
  CHECK(world.notes.all.empty());
}

TEST_CASE("files: flags that only count at creation are not used again") {
  World world;
  world.open_with(O_RDWR | O_CREAT | O_TRUNC | O_EXCL | O_APPEND | O_NONBLOCK, 10);
  REQUIRE(world.check());
  CHECK(fs::file_size(world.path) == 10);
  int flags = ::fcntl(world.opened.descriptors.at(0), F_GETFL);
  CHECK((flags & (O_ACCMODE | O_APPEND | O_NONBLOCK)) == (O_RDWR | O_APPEND | O_NONBLOCK));
}

TEST_CASE("files: one that is missing is not found, one that only was read and changed is an answer of no") {
  World world;
  world.open_with(O_RDONLY, 0);
  SUBCASE("missing") {
    fs::remove(world.path);
    CHECK(world.code() == Code::kNotFound);
  }
  SUBCASE("of another size") {
    std::ofstream(world.path, std::ios::app) << "x";
    CHECK(world.code() == Code::kAnswerNo);
  }
  SUBCASE("of the same size, but written since") {
    world.image.files[0].mtime_ns -= 1;
    CHECK(world.code() == Code::kAnswerNo);
  }
  SUBCASE("now a fifo, which must not be waited for") {
    fs::remove(world.path);
    REQUIRE(::mkfifo(world.path.c_str(), 0600) == 0);
    CHECK(world.code() == Code::kAnswerNo);
  }
}

TEST_CASE("files: code that changed is refused, mapped or executed") {
  World world;
  store::MemoryMap map;
  map.start = 0x10000, map.end = 0x20000, map.prot = 5, map.kind = MappingKind::kPrivateFile, map.file = 0;
  SUBCASE("mapped") { world.image.processes[0].maps = {map}; }
  SUBCASE("executed") { world.image.processes[0].exe = 0; }
  std::ofstream(world.path, std::ios::app) << "x";
  CHECK(world.code() == Code::kAnswerNo);
}

TEST_CASE("files: one that the process was writing may have grown, but not shrunk below its offset") {
  World world;
  world.open_with(O_WRONLY, 10);
  SUBCASE("grown") {
    std::ofstream(world.path, std::ios::app) << "more";
    REQUIRE(world.check());
    CHECK(world.notes.all.find("has grown by 4 bytes") != std::string::npos);
    CHECK(::lseek(world.opened.descriptors.at(0), 0, SEEK_CUR) == 10);
  }
  SUBCASE("shrunk") {
    fs::resize_file(world.path, 9);
    CHECK(world.code() == Code::kAnswerNo);
  }
  SUBCASE("another file") {
    fs::rename(world.path, world.dir / "data.1");
    std::ofstream(world.path) << "0123456789abc";
    REQUIRE(world.check());
    CHECK(world.notes.all.find("another file") != std::string::npos);
  }
}

TEST_CASE("files: every reason is told, not only the first") {
  World world;
  world.open_with(O_RDONLY, 0);
  world.image.files.push_back(world.image.files[0]);
  world.image.files[1].path += ".missing";
  world.image.processes[0].exe = 1;
  std::ofstream(world.path, std::ios::app) << "x";
  auto result = world.check();
  REQUIRE_FALSE(result);
  CHECK(result.error().causes.size() == 2);
}
