#include "lib/parity/group.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "lib/base/io.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using namespace ckpt::parity;
namespace fs = std::filesystem;

namespace {

void write_text(const fs::path& path, const std::string& text) { REQUIRE(io::write_file(path, text)); }

/// Folders of ranks, all of different sizes.
struct Job {
  test::TempDir dir;
  uint32_t nodes, local;
  Cancel cancel;

  Job(uint32_t n, uint32_t l) : nodes(n), local(l) {
    for (uint32_t rank = 0; rank < nodes * local; ++rank) fill(rank);
  }
  fs::path folder(uint32_t rank) const { return dir.path / fmt::format("r{}", rank); }
  std::vector<fs::path> parity_of(uint32_t rank) const { return *find_parity_files(folder(rank)); }
  void fill(uint32_t rank) const {
    fs::create_directories(folder(rank) / "inner");
    std::string text;
    for (uint32_t i = 0; i < 5000 + rank * 777; ++i) text += static_cast<char>((i * 31 + rank * 17) >> 3);
    write_text(folder(rank) / "data", text);
    write_text(folder(rank) / "inner" / "empty", "");
    fs::create_symlink("data", folder(rank) / "link");
    REQUIRE(::chmod((folder(rank) / "data").c_str(), 0640) == 0);
  }
  void lose(uint32_t rank) const {
    fs::remove_all(folder(rank));
    for (const fs::path& path : parity_of(rank)) fs::remove(path);
  }
  std::string content() const {
    std::string out;
    for (uint32_t rank = 0; rank < nodes * local; ++rank) {
      const auto table = scan_folder(folder(rank));
      out += table ? table->encode() + io::read_file(folder(rank) / "data", 1 << 20).value_or("none") : "gone";
    }
    return out;
  }
  template <class T>
  Result<T> all(const std::function<Result<T>(Rank&)>& work) {
    std::optional<Result<T>> first;
    auto results = run_locally(nodes * local, [&](Transport& transport) -> Result<void> {
      Rank rank{transport, folder(transport.rank()), {fmt::format("n{}", transport.rank() / local), ""},
                64 << 10,  null_progress(),          cancel};
      Result<T> out = work(rank);
      Result<void> well = out ? Result<void>() : Result<void>(out.error());
      if (transport.rank() == 0) first.emplace(std::move(out));
      return well;
    });
    REQUIRE(results);
    for (const Result<void>& one : *results) CHECK(one.has_value() == first->has_value());
    return std::move(*first);
  }
  Result<Protection> protect(Scheme scheme, uint32_t parity) {
    ProtectOptions options;
    options.rules = {scheme, parity, FailureGroup::kNode, 16};
    return all<Protection>([&](Rank& rank) { return parity::protect(rank, options); });
  }
  Result<Health> check() {
    return all<Health>([](Rank& rank) { return check_parity(rank); });
  }
  Result<Rebuilt> rebuild(bool force = false) {
    return all<Rebuilt>([&](Rank& rank) { return parity::rebuild(rank, {force, false}); });
  }
};

}  // namespace

TEST_CASE("parity: a lost node's folders come back with names, modes and times") {
  struct Shape {
    uint32_t nodes, local;
    Scheme scheme;
    uint32_t parity;
  };
  for (const Shape& shape :
       {Shape{2, 1, Scheme::kXor, 1}, Shape{4, 2, Scheme::kXor, 1}, Shape{3, 2, Scheme::kPartner, 1},
        Shape{5, 1, Scheme::kRs, 2}, Shape{3, 3, Scheme::kRs, 3}, Shape{4, 2, Scheme::kRs, 2}}) {
    CAPTURE(shape.nodes);
    CAPTURE(shape.local);
    Job job(shape.nodes, shape.local);
    const std::string before = job.content();
    REQUIRE(job.protect(shape.scheme, shape.parity));
    CHECK(job.check()->whole());
    for (uint32_t local = 0; local < shape.local; ++local) job.lose(shape.local + local);
    const auto health = job.check();
    CHECK_FALSE(health->whole());
    CHECK(health->repairable());
    REQUIRE(job.rebuild());
    CHECK(job.content() == before);
    CHECK(job.check()->whole());
  }
}

TEST_CASE("parity: a member that turns out damaged during a rebuild comes back, too") {
  Job job(5, 1);
  const std::string before = job.content();
  REQUIRE(job.protect(Scheme::kRs, 2));
  job.lose(4);
  const auto times = fs::last_write_time(job.folder(1) / "data");
  std::fstream data(job.folder(1) / "data", std::ios::in | std::ios::out | std::ios::binary);
  data.seekp(3000);
  data.put('!');
  data.close();
  fs::last_write_time(job.folder(1) / "data", times);
  CHECK_FALSE(job.rebuild());  // it would replace a folder
  const auto rebuilt = job.rebuild(true);
  REQUIRE(rebuilt);
  CHECK(rebuilt->attempts == 2);
  CHECK(job.content() == before);
}

TEST_CASE("parity: damaged and missing parity is noticed, and made again") {
  Job job(4, 1);
  REQUIRE(job.protect(Scheme::kXor, 1));
  const fs::path path = job.parity_of(2).front();
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096 + 100);
  file.put('!');
  file.close();
  auto health = job.check();
  REQUIRE(health);
  CHECK(health->sets[0].members[2].parity == State::kDamaged);
  CHECK(health->repairable());
  fs::remove(path);
  health = job.check();
  CHECK(health->sets[0].members[2].parity == State::kMissing);
  CHECK(health->sets[0].members[2].data == State::kWhole);
  REQUIRE(job.rebuild());
  CHECK(job.check()->whole());
}

TEST_CASE("parity: more than the scheme survives is known to be lost") {
  Job job(4, 1);
  REQUIRE(job.protect(Scheme::kXor, 1));
  job.lose(1);
  job.lose(2);
  const auto health = job.check();
  REQUIRE(health);
  CHECK_FALSE(health->repairable());
  const auto rebuilt = job.rebuild();
  REQUIRE(rebuilt);
  CHECK(rebuilt->data.empty());
  CHECK_FALSE(fs::exists(job.folder(1)));
}

TEST_CASE("parity: files that came later are told, and no reason to replace the folder") {
  Job job(3, 1);
  REQUIRE(job.protect(Scheme::kXor, 1));
  write_text(job.folder(0) / "later", "x");
  const auto health = job.check();
  CHECK(health->sets[0].members[0].data == State::kChanged);
  job.lose(2);
  REQUIRE(job.rebuild());
  CHECK(fs::exists(job.folder(0) / "later"));
  CHECK(fs::exists(job.folder(2) / "data"));
}

TEST_CASE("parity: protection anew replaces the old one; where it fails on a rank the old one stays whole") {
  Job job(3, 1);
  REQUIRE(job.protect(Scheme::kXor, 1));
  const auto first = job.parity_of(0);
  REQUIRE(::mkfifo((job.folder(1) / "pipe").c_str(), 0600) == 0);
  const auto refused = job.protect(Scheme::kRs, 2);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kUnsupported);
  CHECK(job.parity_of(0) == first);
  fs::remove(job.folder(1) / "pipe");
  REQUIRE(job.protect(Scheme::kRs, 2));
  const auto second = job.parity_of(0);
  REQUIRE(second.size() == 1);
  CHECK(second > first);
  // A kill between the first name and the last leaves some ranks with the later one only beside the earlier.
  CHECK(job.check()->sets[0].set.scheme == Scheme::kRs);
}

TEST_CASE("parity: what cannot be read for lack of rights or descriptors is an error, and no damage") {
  for (int err : {EACCES, EPERM, EMFILE, ENFILE, ENOMEM, ENOSPC, EINTR})
    CHECK_FALSE(tells_loss(sys_error(err, "", "")));
  for (int err : {ENOENT, ENOTDIR, EIO}) CHECK(tells_loss(sys_error(err, "", "")));
  CHECK(tells_loss(Error(Code::kCorrupt, "", "")));
  CHECK_FALSE(tells_loss(Error(Code::kUnsupported, "", "of a later version")));
  if (::geteuid() != 0) return ckpt::test::skip("root reads what nobody may, and becomes somebody who does not");
  Job job(3, 1);
  REQUIRE(job.protect(Scheme::kXor, 1));
  REQUIRE(::chmod(job.dir.path.c_str(), 0755) == 0);
  for (const fs::path& path : {job.parity_of(1).front(), job.folder(1) / "data", job.folder(1)}) {
    CAPTURE(path);
    for (uint32_t rank = 0; rank < 3; ++rank) REQUIRE(::chmod(job.parity_of(rank).front().c_str(), 0644) == 0);
    struct stat st {};
    REQUIRE(::stat(path.c_str(), &st) == 0);
    REQUIRE(::chmod((job.folder(0) / "data").c_str(), 0644) == 0);
    REQUIRE(::chmod((job.folder(2) / "data").c_str(), 0644) == 0);
    REQUIRE(::chmod(path.c_str(), 0) == 0);
    REQUIRE(::seteuid(65000) == 0);
    const auto checked = job.check();
    const auto rebuilt = job.rebuild(true);
    REQUIRE(::seteuid(0) == 0);
    REQUIRE_FALSE(checked);
    CHECK(checked.error().code == Code::kPermission);
    REQUIRE_FALSE(rebuilt);
    CHECK(rebuilt.error().code == Code::kPermission);
    CHECK(rebuilt.error().causes == std::vector<std::string>{"on rank 1"});
    REQUIRE(::chmod(path.c_str(), st.st_mode & 07777) == 0);
  }
}

TEST_CASE("parity: by a stranger's parity file root makes nothing that the stranger could not make") {
  constexpr uid_t kStranger = 65000;
  if (::geteuid() != 0) return ckpt::test::skip("root only rebuilds what is another user's");
  enum class Made { kRootsFile, kSetUserId, kAsItWas };
  for (const Made made : {Made::kRootsFile, Made::kSetUserId, Made::kAsItWas}) {
    const bool forged = made != Made::kAsItWas;
    CAPTURE(forged);
    Job job(3, 1);
    auto give_away = [&](const fs::path& path) { REQUIRE(::chown(path.c_str(), kStranger, kStranger) == 0); };
    for (uint32_t rank = 0; rank < 3 && made != Made::kRootsFile; ++rank) {
      for (const char* name : {"", "data", "inner", "inner/empty"}) give_away(job.folder(rank) / name);
      REQUIRE(::lchown((job.folder(rank) / "link").c_str(), kStranger, kStranger) == 0);
    }
    REQUIRE(::chmod((job.folder(1) / "data").c_str(), made == Made::kSetUserId ? 06755 : 0755) == 0);
    REQUIRE(job.protect(Scheme::kXor, 1));
    for (uint32_t rank = 0; rank < 3; ++rank) give_away(job.parity_of(rank).front());
    job.lose(1);
    const auto rebuilt = job.rebuild();
    REQUIRE(rebuilt.has_value() == !forged);
    if (forged) {
      CHECK(rebuilt.error().code == Code::kPermission);
      CHECK_FALSE(fs::exists(job.folder(1)));
      CHECK(job.parity_of(1).empty());
      continue;
    }
    struct stat st {};
    REQUIRE(::stat((job.folder(1) / "data").c_str(), &st) == 0);
    CHECK((st.st_mode & 07777) == 0755);
    CHECK(st.st_uid == kStranger);
    // What comes of a stranger's parity is a stranger's: another rebuild trusts it no more.
    REQUIRE(::stat(job.parity_of(1).front().c_str(), &st) == 0);
    CHECK(st.st_uid == kStranger);
    REQUIRE(::chown(job.parity_of(0).front().c_str(), 0, 0) == 0);
    REQUIRE(::chown(job.parity_of(1).front().c_str(), kStranger + 1, 0) == 0);
    job.lose(2);
    REQUIRE_FALSE(job.rebuild());
    CHECK_FALSE(fs::exists(job.folder(2)));
  }
}

TEST_CASE("parity: what a killed protection has staged goes with the next, what one that runs has stays") {
  Job job(3, 1);
  auto staging = [&](const char* what) {
    return job.dir.path / fmt::format(".ckpt-staging-r1.ckpt-parity-{:016x}-{}", 7, what);
  };
  for (const bool again : {false, true}) {
    REQUIRE(fs::create_directory(staging("killed")));
    fs::create_directory(staging("runs"));
    UniqueFd held(::open(staging("runs").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    REQUIRE(::flock(held.get(), LOCK_EX | LOCK_NB) == 0);
    if (again)
      REQUIRE(job.rebuild());
    else
      REQUIRE(job.protect(Scheme::kXor, 1));
    CHECK_FALSE(fs::exists(staging("killed")));
    CHECK(fs::exists(staging("runs")));
  }
}

TEST_CASE("parity: a lost folder that is a mount point comes back, with owner, mode and time") {
  Job job(3, 1);
  REQUIRE(::chmod(job.folder(1).c_str(), 0750) == 0);
  const std::string before = job.content();
  REQUIRE(job.protect(Scheme::kXor, 1));
  job.lose(1);
  fs::create_directory(job.folder(1));
  if (::mount("tmpfs", job.folder(1).c_str(), "tmpfs", 0, "size=1m") != 0)
    return ckpt::test::skip("mounting a tmpfs needs privileges");
  const auto rebuilt = job.rebuild();
  const std::string after = job.content();
  const auto health = job.check();
  CHECK(::umount(job.folder(1).c_str()) == 0);
  REQUIRE(rebuilt);
  CHECK(after == before);
  CHECK(health->whole());
}

TEST_CASE("parity: an interruption ends all ranks, and leaves nothing") {
  Job job(3, 1);
  job.cancel.request();
  const auto stopped = job.protect(Scheme::kXor, 1);
  REQUIRE_FALSE(stopped);
  CHECK(stopped.error().code == Code::kInterrupted);
  size_t entries = 0;
  for (const auto& entry : fs::directory_iterator(job.dir.path)) entries += entry.is_directory() ? 1 : 100;
  CHECK(entries == 3);
}

TEST_CASE("parity file: cut at every byte, each byte of the head and of what follows the parity flipped") {
  Job job(3, 1);
  REQUIRE(job.protect(Scheme::kXor, 1));
  const fs::path path = job.parity_of(0).front();
  const auto file = ParityFile::open(path);
  REQUIRE(file);
  const std::string whole = *io::read_file(path, 1 << 20);
  const size_t parity_end = 4096 + file->record().chunk;
  const fs::path other = job.dir.path / "other";
  for (size_t size = 0; size < whole.size(); ++size) {
    write_text(other, whole.substr(0, size));
    REQUIRE_FALSE(ParityFile::open(other));
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    if (at >= 4096 && at < parity_end) continue;
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write_text(other, flipped);
    const auto opened = ParityFile::open(other);
    REQUIRE_FALSE(opened);
  }
  write_text(other, whole + "x");
  CHECK_FALSE(ParityFile::open(other));
}

TEST_CASE("file table: names that lead out of the folder, repeats and lies are refused") {
  auto entry = [](FileEntry::Type type, const std::string& name, uint64_t size = 0) {
    FileEntry out;
    out.type = type, out.name = name, out.size = size, out.mode = 0644;
    if (type == FileEntry::Type::kLink) out.target = "x";
    return out;
  };
  const FileEntry root = entry(FileEntry::Type::kFolder, "");
  auto parse = [&](std::vector<FileEntry> entries) {
    entries.insert(entries.begin(), root);
    const std::string bytes = FileTable{entries}.encode();
    return FileTable::parse(as_bytes(bytes), "table");
  };
  CHECK(parse({entry(FileEntry::Type::kFolder, "a"), entry(FileEntry::Type::kFile, "a/b", 5)}));
  const auto type = FileEntry::Type::kFile;
  for (const char* name : {"", "/abs", "../up", "a/../b", "a//b", "a/", ".", "a/./b", "missing/file"})
    CHECK_MESSAGE(!parse({entry(FileEntry::Type::kFolder, "a"), entry(type, name)}), name);
  CHECK_FALSE(parse({entry(type, "a"), entry(type, "a")}));
  CHECK_FALSE(parse({entry(FileEntry::Type::kLink, "a"), entry(type, "a/b")}));
  CHECK_FALSE(parse({entry(type, "a"), entry(type, "a/b")}));
  CHECK_FALSE(parse({entry(type, "a", UINT64_MAX), entry(type, "b", 5)}));
  CHECK_FALSE(parse({entry(FileEntry::Type::kFolder, "a", 7)}));
  CHECK_FALSE(parse({entry(type, std::string("a\0b", 3))}));
  CHECK_FALSE(FileTable::parse({}, "table"));
  const std::string bytes = FileTable{{root}}.encode();
  for (size_t size = 0; size < bytes.size(); ++size)
    CHECK_FALSE(FileTable::parse(as_bytes(bytes).first(size), "table"));
}
