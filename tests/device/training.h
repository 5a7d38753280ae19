// The training loop of tests/device/programs under `ckpt run`: it checks every one of its losses at the end.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

template <class F>
bool within(int seconds, const F& condition) {
  for (int i = 0; i < seconds * 100; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Training {
  std::filesystem::path folder;
  int pid = -1;
  /// In a session of its own, with nothing of the caller's open; `where`/log has its output.
  explicit Training(const std::filesystem::path& where) : folder(where / "work") {
    std::filesystem::create_directories(folder);
    pid = ::fork();
    if (pid == 0) {
      ::setsid();
      const int null = ::open("/dev/null", O_RDWR),
                log = ::open((where / "log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(null, 0);
      ::dup2(log, 1);
      ::dup2(log, 2);
      ::close_range(3, ~0u, 0);
      ::execl(CKPT_BINARY, CKPT_BINARY, "run", "--", CKPT_TRAIN, folder.c_str(), "1048576", nullptr);
      ::_exit(127);
    }
    REQUIRE(within(60, [&] { return std::filesystem::exists(folder / "ready"); }));
  }
  ~Training() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  Training(const Training&) = delete;
  /// Its own verdict: "pass", or what is wrong.
  std::string result() {
    std::ofstream(folder / "check.staged") << "0\n";
    std::filesystem::rename(folder / "check.staged", folder / "check");  // whole, or not there
    CHECK(within(120, [&] { return std::filesystem::exists(folder / "result"); }));
    return text_of(folder / "result");
  }
};
