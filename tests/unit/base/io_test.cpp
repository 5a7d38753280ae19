#include "lib/base/io.h"
#include "tests/support/temp_dir.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

using namespace ckpt;
using ckpt::test::TempDir;
namespace fs = std::filesystem;

TEST_CASE("read: a file at the limit is read, one byte more is refused, whether or not its size is known beforehand") {
  TempDir scratch;
  const fs::path file = scratch.path / "f";
  REQUIRE(io::write_file(file, std::string(1000, 'x')));
  REQUIRE(io::read_file(file, 1000));
  CHECK(io::read_file(file, 1000)->size() == 1000);
  auto refused = io::read_file(file, 999);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kCorrupt);

  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd in(ends[0]), out(ends[1]);
  REQUIRE(io::write_all(out.get(), as_bytes(std::string(1000, 'y')), "pipe"));
  out.reset();
  auto from_pipe = io::read_all(in.get(), 999, "pipe");
  REQUIRE_FALSE(from_pipe);
  CHECK(from_pipe.error().code == Code::kCorrupt);
}

TEST_CASE("read: files of /proc, whose size reads as 0, come whole") {
  auto text = io::read_file("/proc/self/status", 1 << 20);
  REQUIRE(text);
  CHECK(text->find("Pid:") != std::string::npos);
}

TEST_CASE("read: a missing file is not found, a folder is no file") {
  TempDir scratch;
  auto missing = io::read_file(scratch.path / "none", 10);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Code::kNotFound);
  CHECK(missing.error().subject == (scratch.path / "none").string());
  CHECK_FALSE(io::read_file(scratch.path, 10));
}

TEST_CASE("exact reads: a file that ends too early is called truncated, with the byte at which it ends") {
  TempDir scratch;
  REQUIRE(io::write_file(scratch.path / "f", "0123456789"));
  auto fd = io::open_file(scratch.path / "f", O_RDONLY);
  REQUIRE(fd);
  std::byte buffer[6];
  REQUIRE(io::pread_exact(fd->get(), buffer, 4, "f"));
  CHECK(as_text(buffer) == "456789");
  Result<void> cut = io::pread_exact(fd->get(), buffer, 5, "f");
  REQUIRE_FALSE(cut);
  CHECK(cut.error().code == Code::kCorrupt);
  CHECK(cut.error().text() == "f: truncated: it ends at byte 10");
}

TEST_CASE("open_regular: links, folders and fifos are refused, and a fifo does not hang") {
  TempDir scratch;
  REQUIRE(io::write_file(scratch.path / "f", "x"));
  fs::create_symlink("f", scratch.path / "link");
  fs::create_directory(scratch.path / "dir");
  REQUIRE(::mkfifo((scratch.path / "fifo").c_str(), 0600) == 0);
  auto dir = io::open_file(scratch.path, O_RDONLY | O_DIRECTORY);
  REQUIRE(dir);
  CHECK(io::open_regular(dir->get(), "f"));
  for (const char* name : {"link", "dir", "fifo"}) {
    auto refused = io::open_regular(dir->get(), name);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kCorrupt);
  }
}

TEST_CASE("written files are private and their descriptors are not inherited") {
  TempDir scratch;
  REQUIRE(io::write_file(scratch.path / "f", "x"));
  struct stat st{};
  REQUIRE(::stat((scratch.path / "f").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
  auto fd = io::open_file(scratch.path / "f", O_RDONLY);
  REQUIRE(fd);
  CHECK((::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("sync_tree: walks folders and reports one that is not there") {
  TempDir scratch;
  fs::create_directories(scratch.path / "a/b");
  REQUIRE(io::write_file(scratch.path / "a/b/f", "x"));
  CHECK(io::sync_tree(scratch.path));
  auto missing = io::sync_tree(scratch.path / "none");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Code::kNotFound);
}

TEST_CASE("read: a pipe and a device are refused at once") {
  TempDir scratch;
  REQUIRE(::mkfifo((scratch.path / "fifo").c_str(), 0600) == 0);
  for (const fs::path& path : {scratch.path / "fifo", fs::path("/dev/zero")}) {
    auto refused = io::read_file(path, 1 << 20);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Code::kCorrupt);
  }
}

TEST_CASE("close_descriptors: also where a filter of system calls refuses close_range") {
  const pid_t child = ::fork();
  if (child == 0) {
    sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program{4, code};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
      ::_exit(77);
    const int low = ::dup(0), high = ::fcntl(0, F_DUPFD, 900);
    io::close_descriptors(static_cast<unsigned>(low));
    ::_exit(::fcntl(low, F_GETFD) == -1 && ::fcntl(high, F_GETFD) == -1 && ::fcntl(0, F_GETFD) != -1 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
