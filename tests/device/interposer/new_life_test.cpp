// A program under `ckpt run` is dumped while its large memory is parked here, killed, restored, and given its memory back by
// the agent, which finds itself in a new life.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "plugins/cuda/agent_client.h"
#include "plugins/cuda/driver_api.h"

using namespace ckpt;
using cuda::AgentTarget;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kSecond = 1'000'000;

#define DONE(expression)                                                      \
  do {                                                                        \
    auto&& done_ = (expression);                                              \
    REQUIRE_MESSAGE(done_, #expression << ": " << (done_ ? "" : done_.error().text())); \
  } while (0)

template <class F>
bool within(int seconds, const F& condition) {
  for (int i = 0; i < seconds * 100; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

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

/// The training loop of tests/device/programs, which checks every one of its losses at the end.
struct Training {
  fs::path folder;
  int pid = -1;
  explicit Training(const fs::path& where) : folder(where / "work") {
    fs::create_directories(folder);
    pid = ::fork();
    if (pid == 0) {
      ::setsid();
      const int null = ::open("/dev/null", O_RDWR), log = ::open((where / "log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(null, 0);
      ::dup2(log, 1);
      ::dup2(log, 2);
      ::close_range(3, ~0u, 0);  // whatever the caller of this test has open
      ::execl(CKPT_BINARY, CKPT_BINARY, "run", "--", CKPT_TRAIN, folder.c_str(), "1048576", nullptr);
      ::_exit(127);
    }
    REQUIRE(within(60, [&] { return fs::exists(folder / "ready"); }));
  }
  ~Training() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  Training(const Training&) = delete;
};

int ckpt_does(const std::string& arguments) { return std::system((std::string(CKPT_BINARY) + " " + arguments + "").c_str()); }

}  // namespace

TEST_CASE("parked, dumped, killed, restored, attached: the training goes on to the bit") {
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
    std::map<uint64_t, UniqueFd> parked;
    auto connected = AgentTarget::connect(training.pid, 10 * kSecond);
    DONE(connected);
    AgentTarget& agent = **connected;
    const uint64_t first_life = agent.hello().value().start_time;
    DONE(agent.close_gate(10 * kSecond));
    DONE(agent.drain(10 * kSecond));
    for (const device::Allocation& a : agent.allocations().value()) {
      if (a.kind != device::MemoryKind::kOwned) continue;
      auto fd = agent.export_allocation(a.id);
      DONE(fd);
      parked[a.id] = std::move(*fd);
      DONE(agent.release(a.id));
    }
    CHECK(parked.size() == 2);
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
    CHECK(about->gate_closed == 1);
    CHECK(about->released == 2);
    for (const auto& [id, fd] : parked) DONE((*again)->attach(id, fd.get()));
    DONE((*again)->open_gate());
    std::ofstream(training.folder / "check.staged") << "0";
    fs::rename(training.folder / "check.staged", training.folder / "check");  // whole, or not there
    CHECK(within(60, [&] { return fs::exists(training.folder / "result"); }));
    const std::string verdict = text_of(training.folder / "result");
    CHECK_MESSAGE(verdict.starts_with("pass"), verdict << text_of(place / "log"));
  }
  fs::remove_all(place);
}
