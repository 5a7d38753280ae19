// The unit tests of this room see every fsync that is made.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "lib/base/io.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
namespace fs = std::filesystem;

namespace {

struct Seen {
  std::mutex mutex;
  std::condition_variable changed;
  bool on = false;
  std::map<ino_t, int> times;
  std::set<std::thread::id> threads;
  ino_t fails = 0;
};

Seen& seen() {
  static Seen out;
  return out;
}

/// Waits once until a second thread has come, or a while.
int note(int fd) {
  struct stat st {};
  ::fstat(fd, &st);
  std::unique_lock lock(seen().mutex);
  if (!seen().on) return 0;
  ++seen().times[st.st_ino];
  const bool first = seen().threads.empty();
  seen().threads.insert(std::this_thread::get_id());
  seen().changed.notify_all();
  if (first) seen().changed.wait_for(lock, std::chrono::seconds(5), [] { return seen().threads.size() > 1; });
  return st.st_ino == seen().fails ? EIO : 0;
}

ino_t inode(const fs::path& path) {
  struct stat st {};
  REQUIRE(::lstat(path.c_str(), &st) == 0);
  return st.st_ino;
}

}  // namespace

extern "C" int fsync(int fd) {
  if (const int error = note(fd)) return errno = error, -1;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

TEST_CASE("sync: of many files each and each folder is synced once, several at a time; one that fails is named") {
  test::TempDir scratch;
  const fs::path top = scratch.path / "tree";
  for (int folder = 0; folder < 3; ++folder) {
    fs::create_directories(top / std::to_string(folder));
    for (int i = 0; i < 30; ++i) REQUIRE(io::write_file(top / std::to_string(folder) / std::to_string(i), "x"));
  }
  fs::create_symlink("/etc/passwd", top / "link");
  seen().on = true;
  REQUIRE(io::sync_tree(top));
  CHECK(seen().times.size() == 94);
  for (const auto& [at, times] : seen().times) CHECK(times == 1);
  CHECK(seen().times.count(inode(top)) == 1);
  CHECK(seen().times.count(inode(top / "1")) == 1);
  CHECK(seen().times.count(inode(top / "2" / "29")) == 1);
  CHECK(seen().threads.size() > 1);
  seen().fails = inode(top / "2" / "7");
  auto failed = io::sync_tree(top);
  seen().on = false;
  REQUIRE(!failed);
  CHECK(failed.error().subject == (top / "2" / "7").string());
  CHECK(failed.error().code == Code::kIo);
}
