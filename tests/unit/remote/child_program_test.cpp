#include "lib/remote/child_program.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include <chrono>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/io.h"

using namespace ckpt;
using namespace ckpt::remote;

namespace {

ProgramCall shell(const std::string& script, std::string& out) {
  ProgramCall call;
  call.words = {"sh", "-c", script};
  call.output = [&out](ByteSpan bytes) -> Result<void> {
    out += as_text(bytes);
    return {};
  };
  return call;
}

/// A little later: the kernel needs a moment. Whether somebody waits for orphans is not ours to say.
bool is_gone(const std::string& pid) {
  for (int i = 0; i < 200; ++i) {
    const auto stat = io::read_file("/proc/" + std::to_string(std::stol(pid)) + "/stat", 4096);
    if (!stat || stat->find(") Z ") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("programs: content goes in and comes out, statuses and the end of what they say are told") {
  std::string out;
  ProgramCall call = shell("cat; echo one >&2; echo two >&2; exit 7", out);
  const std::string content(3 << 20, 'x');
  call.input = as_bytes(content);
  auto end = run_program(call, nullptr);
  REQUIRE(end);
  CHECK(end->status == 7);
  CHECK(end->said == "one; two");
  CHECK(out == content);
  out.clear();
  end = run_program(shell("kill -9 $$", out), nullptr);
  REQUIRE(end);
  CHECK(end->status == 128 + SIGKILL);
  end = run_program(shell("head -c 100000 /dev/zero | tr '\\0' y >&2", out), nullptr);
  REQUIRE(end);
  CHECK(end->said == std::string(2000, 'y'));
  call = shell("", out);
  call.words = {"no-such-program-here"};
  auto none = run_program(call, nullptr);
  REQUIRE(!none);
  CHECK(none.error().code == Code::kUnsupported);
}

TEST_CASE("programs: one that is silent is ended with all of its group, one that goes on is not") {
  std::string out;
  ProgramCall call = shell("sleep 600 & echo $!; echo why >&2; wait", out);
  call.silence_s = 2;
  auto end = run_program(call, nullptr);
  REQUIRE(!end);
  CHECK(end.error().code == Code::kIo);
  CHECK(end.error().text().find("why") != std::string::npos);
  REQUIRE(!out.empty());
  CHECK(is_gone(out));
  out.clear();
  call = shell("for i in 1 2 3 4; do sleep 0.6; echo $i; done", out);
  call.silence_s = 2;
  CHECK(run_program(call, nullptr));
  CHECK(out == "1\n2\n3\n4\n");
}

TEST_CASE("programs: a refused output and an interrupt end one with what it has started") {
  std::string out;
  ProgramCall call = shell("sleep 600 & echo $!; yes", out);
  call.output = [&out](ByteSpan bytes) -> Result<void> {
    out += as_text(bytes);
    return out.size() < 1000 ? Result<void>() : fail(Code::kCorrupt, "it", "is too much");
  };
  auto end = run_program(call, nullptr);
  REQUIRE(!end);
  CHECK(end.error().code == Code::kCorrupt);
  CHECK(is_gone(out));
  out.clear();
  Cancel cancel;
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    cancel.request();
  });
  Stopwatch watch;
  end = run_program(shell("sleep 600", out), &cancel);
  later.join();
  REQUIRE(!end);
  CHECK(end.error().code == Code::kInterrupted);
  CHECK(watch.elapsed_us() < 60'000'000);
}

TEST_CASE("programs: who reads its input is not silent, and all of a file is there from its beginning") {
  const UniqueFd file(::memfd_create("input", MFD_CLOEXEC));
  const std::string content(400, 'z');
  REQUIRE(io::write_all(file.get(), as_bytes(content), "input"));
  std::string out;
  ProgramCall call = shell("for i in 1 2 3 4; do all=$all$(head -c 100); sleep 0.7; done; echo -n $all", out);
  call.input_file = file.get();
  call.silence_s = 2;
  auto end = run_program(call, nullptr);
  REQUIRE(end);
  CHECK(out == content);
}

TEST_CASE("programs: what they have started ends with the process that ran them") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string said;
    ProgramCall call = shell("sleep 600 & echo $!; echo $$; wait", said);
    call.output = [&](ByteSpan bytes) { return io::write_all(ends[1], bytes, ""); };
    (void)run_program(call, nullptr);
    ::_exit(0);
  }
  std::string pids;
  while (std::count(pids.begin(), pids.end(), '\n') < 2) {
    char byte = 0;
    REQUIRE(::read(ends[0], &byte, 1) == 1);
    pids += byte;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const size_t line = pids.find('\n');
  CHECK(is_gone(pids.substr(0, line)));
  CHECK(is_gone(pids.substr(line + 1)));
  ::close(ends[0]), ::close(ends[1]);
}
