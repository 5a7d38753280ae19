// A program under `ckpt run` is dumped while its large memory is offloaded here, killed, restored, and given its memory
// back by the agent, which finds itself in a new life.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "plugins/cuda/driver_api.h"
#include "tests/device/interposer/puppet_process.h"
#include "tests/device/training.h"

using namespace ckpt;
using cuda::AgentTarget;
namespace fs = std::filesystem;

namespace {

/// The driver's calls about processes, made by this one.
struct Checkpoints {
  void* driver = dlopen(CKPT_STANDIN, RTLD_NOW);
  template <class... A>
  int call(const char* name, A... arguments) {
    return reinterpret_cast<int (*)(A...)>(dlsym(driver, name))(arguments...);
  }
  void begin(int pid) {
    cuda::api::CUcheckpointLockArgs lock{};
    cuda::api::CUcheckpointCheckpointArgs checkpoint{};
    lock.timeoutMs = 20000;
    REQUIRE(call("cuInit", 0u) == 0);
    REQUIRE(call("cuCheckpointProcessLock", pid, &lock) == 0);
    REQUIRE(call("cuCheckpointProcessCheckpoint", pid, &checkpoint) == 0);
  }
  void end(int pid) {
    cuda::api::CUcheckpointRestoreArgs restore{};
    cuda::api::CUcheckpointUnlockArgs unlock{};
    REQUIRE(call("cuCheckpointProcessRestore", pid, &restore) == 0);
    REQUIRE(call("cuCheckpointProcessUnlock", pid, &unlock) == 0);
  }
};

int ckpt_does(const std::string& arguments) {
  return std::system((std::string(CKPT_BINARY) + " " + arguments + "").c_str());
}

}  // namespace

TEST_CASE("offloaded, dumped, killed, restored, attached: the training goes on to the bit") {
  if (::geteuid() != 0) return;
  char name[] = "/tmp/ckpt-new-life-XXXXXX";
  REQUIRE(::mkdtemp(name) != nullptr);
  const fs::path place = name;
  fs::create_directories(place / "standin");
  ::setenv("CKPT_STANDIN_DIR", (place / "standin").c_str(), 1);
  ::setenv("CKPT_CUDA_DRIVER", CKPT_STANDIN, 1);
  {
    Training training(place);
    Checkpoints driver;  // not before: the program would inherit its pipes
    REQUIRE(driver.driver != nullptr);
    std::map<uint64_t, UniqueFd> offloaded;
    auto connected = AgentTarget::connect(training.pid, 10 * kSecond);
    DONE(connected);
    AgentTarget& agent = **connected;
    const uint64_t first_life = agent.hello().value().start_time;
    DONE(agent.lock_api(10 * kSecond));
    DONE(agent.drain(10 * kSecond));
    for (const device::Allocation& a : agent.allocations().value()) {
      if (a.kind != device::MemoryKind::kOwned) continue;
      auto fd = agent.export_allocation(a.id);
      DONE(fd);
      offloaded[a.id] = std::move(*fd);
      DONE(agent.release(a.id));
    }
    CHECK(offloaded.size() == 2);
    DONE(agent.hold(120 * kSecond));
    driver.begin(training.pid);
    const std::string gpu_off = ckpt_does("dump --help | grep -q -- --gpu") == 0 ? " --gpu off" : "";
    const std::string image = " -f " + (place / "image").string();
    REQUIRE(ckpt_does("dump -p " + std::to_string(training.pid) + image + gpu_off) == 0);
    REQUIRE(::waitpid(training.pid, nullptr, 0) == training.pid);
    REQUIRE(ckpt_does("restore -d" + image + gpu_off) == 0);
    driver.end(training.pid);

    Result<std::unique_ptr<AgentTarget>> again = fail(Code::kBug, "", "");
    CHECK(within(30, [&] { return bool(again = AgentTarget::connect(training.pid, 10 * kSecond)); }));
    DONE(again);
    auto about = (*again)->hello();
    DONE(about);
    CHECK(about->start_time != first_life);
    CHECK(about->api_locked == 1);
    CHECK(about->released == 2);
    for (const auto& [id, fd] : offloaded) DONE((*again)->attach(id, fd.get()));
    DONE((*again)->unlock_api());
    const std::string verdict = training.result();
    CHECK_MESSAGE(verdict.starts_with("pass"), verdict << text_of(place / "log"));
  }
  fs::remove_all(place);
}
