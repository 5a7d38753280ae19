#include "lib/state/files/restore.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "lib/base/unique_fd.h"
#include "lib/state/files/without_links.h"
#include "tests/support/notes.h"

using namespace ckpt;
using namespace ckpt::restore;
using store::DescriptorKind;
using store::MappingKind;
namespace fs = std::filesystem;

namespace {

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
    file.uid = st.st_uid, file.gid = st.st_gid;
    file.mtime_ns = int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec;
    image.files = {file};
    image.processes.resize(1);
    image.processes[0].threads.resize(1);
    image.processes[0].threads[0].uid.fill(::getuid()), image.processes[0].threads[0].gid.fill(::getgid());
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
    opened = open_files(image, options, *inherited, reasons, notes);
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
  FileOptions options;
  test::Notes notes;
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
  SUBCASE("shorter") {
    fs::resize_file(world.path, 9);
    CHECK(world.code() == Code::kMismatch);
  }
  SUBCASE("another file with other content") {
    world.image.files[0].inode += 1, world.image.files[0].mtime_ns -= 1;
    CHECK(world.code() == Code::kMismatch);
  }
  SUBCASE("behind a symbolic link, though it is the same file") {
    fs::rename(world.path, world.dir / "moved");
    fs::create_symlink("moved", world.path);
    CHECK(world.code() == Code::kMismatch);
  }
  SUBCASE("now a fifo, which must not be waited for") {
    fs::remove(world.path);
    REQUIRE(::mkfifo(world.path.c_str(), 0600) == 0);
    CHECK(world.code() == Code::kMismatch);
  }
}

TEST_CASE("files: one that only was read is the same file still: what came to it is noted") {
  World world;
  world.open_with(O_RDONLY, 4);
  SUBCASE("grown") {
    std::ofstream(world.path, std::ios::app) << "x";
    REQUIRE(world.check());
    CHECK(world.notes.all.find("has grown by 1 bytes") != std::string::npos);
  }
  SUBCASE("written in place") {
    world.image.files[0].mtime_ns -= 1;
    REQUIRE(world.check());
    CHECK(world.notes.all.find("has been written to") != std::string::npos);
  }
  CHECK(::lseek(world.opened.descriptors.at(0), 0, SEEK_CUR) == 4);
}

TEST_CASE("files: a copy with the size and time of one that only was read is as good as that one") {
  World world;
  world.open_with(O_RDONLY, 4);
  world.image.files[0].inode += 1;
  REQUIRE(world.check());
  CHECK(world.notes.all.empty());
}

TEST_CASE("files: the device may have another number after a boot") {
  World world;
  world.open_with(O_WRONLY, 4);
  store::FileIdentity& file = world.image.files[0];
  file.device += 1;
  SUBCASE("the file is as it was") {
    REQUIRE(world.check());
    CHECK(world.notes.all.empty());
  }
  SUBCASE("the owner is another") {
    file.uid += 1;
    CHECK(world.code() == Code::kMismatch);
  }
  SUBCASE("the file is older") {
    file.mtime_ns += 1;
    CHECK(world.code() == Code::kMismatch);
  }
}

TEST_CASE("files: what is allowed to have changed is taken as it is, but for its kind") {
  World world;
  world.open_with(O_RDWR, 4);
  world.image.files[0].inode += 1;
  SUBCASE("by its path") { world.options.allow_changed = {"/elsewhere", world.path.string()}; }
  SUBCASE("by a pattern") { world.options.allow_changed = {"*/dat?"}; }
  REQUIRE(world.check());
  CHECK(world.notes.all.find("as allowed") != std::string::npos);
  fs::remove(world.path);
  REQUIRE(::mkfifo(world.path.c_str(), 0600) == 0);
  CHECK(world.code() == Code::kMismatch);
}

TEST_CASE("files: another file is opened with the rights of the process alone") {
  if (::geteuid() != 0) return;
  World world;
  world.open_with(O_RDONLY, 0);
  world.image.files[0].inode += 1;
  world.image.processes[0].threads[0].uid.fill(65534), world.image.processes[0].threads[0].gid.fill(65534);
  fs::permissions(world.dir, fs::perms(0755));
  SUBCASE("which may read it") {
    fs::permissions(world.path, fs::perms(0644));
    REQUIRE(world.check());
    CHECK(::lseek(world.opened.descriptors.at(0), 0, SEEK_END) == 10);
  }
  SUBCASE("which may not read it") {
    fs::permissions(world.path, fs::perms(0600));
    CHECK(world.code() == Code::kPermission);
  }
  SUBCASE("which may not reach it") {
    fs::permissions(world.path, fs::perms(0644));
    fs::permissions(world.dir, fs::perms(0700));
    CHECK(world.code() == Code::kPermission);
  }
}

TEST_CASE("files: the same file is given back whoever may open it by now, unless its mode says otherwise") {
  if (::geteuid() != 0) return;
  World world;
  world.open_with(O_RDONLY, 0);
  world.image.processes[0].threads[0].uid.fill(65534), world.image.processes[0].threads[0].gid.fill(65534);
  SUBCASE("as it was") {
    fs::permissions(world.path, fs::perms(0600));
    world.image.files[0].mode = (world.image.files[0].mode & ~07777u) | 0600;
    CHECK(world.check());
  }
  SUBCASE("closed since") {
    fs::permissions(world.path, fs::perms(0600));
    world.image.files[0].mode = (world.image.files[0].mode & ~07777u) | 0644;
    CHECK(world.code() == Code::kPermission);
  }
}

namespace {

void make_ghost_of(World& world, uint32_t owner, uint32_t mode) {
  store::FileIdentity& file = world.image.files[0];
  file.deleted = true, file.uid = file.gid = owner, file.mode = S_IFREG | mode, file.space = 0;
  fs::remove(world.path);
  world.open_with(O_RDWR, 0);
}

}  // namespace

TEST_CASE("files: a deleted one comes back without a name, with owner, mode and size") {
  World world;
  make_ghost_of(world, ::getuid(), 0640);
  SUBCASE("its folder there") {}
  SUBCASE("its folders gone, too") { world.image.files[0].path = world.dir / "a/b/data"; }
  SUBCASE("its name taken") { std::ofstream(world.path) << "another"; }
  REQUIRE(world.check());
  struct stat st{};
  REQUIRE(::fstat(world.opened.descriptors.at(0), &st) == 0);
  CHECK(st.st_nlink == 0);
  CHECK(st.st_mode == (S_IFREG | 0640));
  CHECK(st.st_size == 10);
  CHECK(fs::exists(world.dir / "a") == false);
  const auto left = std::distance(fs::directory_iterator(world.dir), fs::directory_iterator());
  CHECK(left == (fs::exists(world.path) ? 1 : 0));
}

TEST_CASE("files: a deleted one is made with the rights of its process, or under no name at all") {
  if (::geteuid() != 0) return;
  World world;
  make_ghost_of(world, 0, 04755);
  world.image.processes[0].threads[0].uid.fill(65534), world.image.processes[0].threads[0].gid.fill(65534);
  SUBCASE("into a folder of ckpt's user") { fs::permissions(world.dir, fs::perms(0755)); }
  SUBCASE("into a folder that anybody may write to") { fs::permissions(world.dir, fs::perms(0777)); }
  REQUIRE(world.check());
  struct stat st{};
  REQUIRE(::fstat(world.opened.descriptors.at(0), &st) == 0);
  CHECK(st.st_nlink == 0);
  CHECK(st.st_uid == 0);
  CHECK(st.st_mode == (S_IFREG | 04755));
  // Nobody who holds it can give it a name: root's file, to be executed as root.
  const std::string link = "/proc/self/fd/" + std::to_string(world.opened.descriptors.at(0));
  CHECK(::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, (world.dir / "named").c_str(), AT_SYMLINK_FOLLOW) != 0);
}

TEST_CASE("files: a dry run leaves no trace of a deleted file") {
  World world;
  make_ghost_of(world, ::getuid(), 0640);
  world.options.dry_run = true;
  struct stat before{}, after{};
  REQUIRE(::stat(world.dir.c_str(), &before) == 0);
  REQUIRE(world.check());
  REQUIRE(::stat(world.dir.c_str(), &after) == 0);
  CHECK(before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
  CHECK(before.st_mtim.tv_sec == after.st_mtim.tv_sec);
}

TEST_CASE("files: the way without links is the same by hand") {
  World world;
  fs::create_directories(world.dir / "sub");
  fs::create_symlink("sub", world.dir / "link");
  std::ofstream(world.dir / "sub" / "x") << "x";
  fs::create_symlink("x", world.dir / "sub" / "y");
  for (auto* way : {open_without_links, walk_without_links}) {
    auto open = [&](const fs::path& path, int flags) { return UniqueFd(way(path.c_str(), flags)); };
    CHECK(open("/", O_PATH | O_DIRECTORY));
    CHECK(open(world.dir / "sub" / "x", O_RDONLY));
    CHECK(open(world.dir / "sub//x", O_RDONLY));
    CHECK(open(world.dir / "sub" / "y", O_PATH | O_NOFOLLOW));
    CHECK(open(world.dir / "sub" / "y", O_PATH).get() == -ELOOP);
    CHECK(open(world.dir / "sub" / "y", O_RDONLY).get() == -ELOOP);
    CHECK(open(world.dir / "link" / "x", O_RDONLY).get() == -ELOOP);
    CHECK(open(world.dir / "none" / "x", O_RDONLY).get() == -ENOENT);
  }
}

TEST_CASE("files: code that changed is refused, mapped or executed") {
  World world;
  store::MemoryMap map;
  map.start = 0x10000, map.end = 0x20000, map.prot = 5, map.kind = MappingKind::kPrivateFile, map.file = 0;
  SUBCASE("mapped") { world.image.processes[0].maps = {map}; }
  SUBCASE("executed") { world.image.processes[0].exe = 0; }
  std::ofstream(world.path, std::ios::app) << "x";
  CHECK(world.code() == Code::kMismatch);
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
    CHECK(world.code() == Code::kMismatch);
  }
  SUBCASE("another file") {
    fs::rename(world.path, world.dir / "data.1");
    std::ofstream(world.path) << "0123456789abc";
    CHECK(world.code() == Code::kMismatch);
  }
}

TEST_CASE("files: every reason is told, not only the first") {
  World world;
  world.open_with(O_RDONLY, 0);
  world.image.files.push_back(world.image.files[0]);
  world.image.files[1].path += ".missing";
  world.image.processes[0].exe = 1;
  fs::resize_file(world.path, 9);
  auto result = world.check();
  REQUIRE_FALSE(result);
  CHECK(result.error().causes.size() == 2);
}
