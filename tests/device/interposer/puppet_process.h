// puppet.cpp under `ckpt run` on the stand-in driver, looked at from outside.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "plugins/cuda/agent_client.h"
#include "tests/device/programs/kernels.h"

inline constexpr uint64_t kSecond = 1'000'000, kMiB = 1 << 20;

#define DONE(expression)                                                      \
  do {                                                                        \
    auto&& done_ = (expression);                                              \
    REQUIRE_MESSAGE(done_, #expression << ": " << (done_ ? "" : done_.error().text())); \
  } while (0)

class Puppet {
 public:
  /// With these variables, "NAME=value", in its environment.
  explicit Puppet(std::vector<std::string> environment = {});
  ~Puppet();
  Puppet(const Puppet&) = delete;

  int pid() const { return pid_; }
  void say(const std::string& line);
  std::string answer();
  std::string ask(const std::string& line);
  /// The number behind "ok".
  uint64_t number(const std::string& line);
  std::unique_ptr<ckpt::cuda::AgentTarget> agent();

 private:
  std::filesystem::path folder_;
  int pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

ckpt::device::Allocation allocation_at(ckpt::cuda::AgentTarget& agent, uint64_t address);
std::vector<ckpt::device::Range> all_owned(ckpt::cuda::AgentTarget& agent);
/// Locks the API and drains.
void stop_and_take(ckpt::cuda::AgentTarget& agent);

/// Memory of the stand-in is a memfd: what the target wrote is read here.
struct View {
  explicit View(const ckpt::UniqueFd& fd) {
    struct stat about;
    REQUIRE(::fstat(fd.get(), &about) == 0);
    size = about.st_size;
    data = static_cast<uint64_t*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    REQUIRE(data != MAP_FAILED);
  }
  ~View() { ::munmap(data, size); }
  View(const View&) = delete;
  bool holds(uint64_t seed, size_t bytes, size_t from = 0) const {
    for (size_t i = 0; i < bytes / 8; ++i) {
      if (data[from / 8 + i] != word_of(seed, i)) return false;
    }
    return true;
  }
  uint64_t* data;
  size_t size;
};
