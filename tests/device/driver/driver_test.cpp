// The checkpoint calls of the stand-in, from outside, on real programs: what lib/engine relies on in the driver.
#include <dirent.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "plugins/cuda/driver_api.h"
#include "tests/support/fixtures.h"

namespace {

using namespace ckpt::cuda::api;
namespace fs = std::filesystem;

struct Table {
#define CKPT_CUDA(name, parameters) CUresult(*name) parameters;
#include "plugins/cuda/driver_functions.inc"
};

/// The caller's own driver. Two GPUs of 64 MiB, shared with the programs.
Table& cu() {
  static Table table = [] {
    static ckpt::test::TempDir shared;
    ::setenv("CKPT_STANDIN_DIR", shared.path.c_str(), 1);
    ::setenv("CKPT_STANDIN_CAPACITY", "67108864", 1);
    ::setenv("CKPT_STANDIN_GPUS", "2", 1);
    void* library = ::dlopen(STANDIN_DRIVER, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library != nullptr, ::dlerror());
    Table made;
#define CKPT_CUDA(name, parameters) made.name = reinterpret_cast<CUresult(*) parameters>(::dlsym(library, #name));
#include "plugins/cuda/driver_functions.inc"
    REQUIRE(made.cuInit(0) == CUDA_SUCCESS);
    return made;
  }();
  return table;
}

template <class Condition>
bool soon(Condition condition, int seconds = 30) {
  for (int i = 0; i < seconds * 200; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

std::string text_of(const fs::path& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A self-checking program on the stand-in.
struct Program {
  ckpt::test::TempDir place;
  pid_t pid = -1;
  int status = -1;
  bool there = false;

  Program(const char* name, std::vector<std::string> arguments = {},
          std::map<std::string, std::string> environment = {}) {
    cu();
    std::string path = std::string(PROGRAMS) + "/target_cuda_" + name;
    pid = ::fork();
    if (pid == 0) {
      ::setenv("LD_LIBRARY_PATH", fs::path(STANDIN_DRIVER).parent_path().c_str(), 1);
      for (auto& [key, value] : environment) ::setenv(key.c_str(), value.c_str(), 1);
      std::vector<char*> argv{path.data(), const_cast<char*>(place.path.c_str())};
      for (auto& each : arguments) argv.push_back(each.data());
      argv.push_back(nullptr);
      int log = ::open((place.path / "log").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
      ::dup2(log, 1), ::dup2(log, 2);
      ::execv(path.c_str(), argv.data());
      ::_exit(127);
    }
    there = true;
    REQUIRE_MESSAGE(soon([&] { return fs::exists(place.path / "ready") || ended(); }), name);
    REQUIRE_MESSAGE(fs::exists(place.path / "ready"), text_of(place.path / "log") << text_of(place.path / "result"));
  }
  ~Program() {
    if (!there) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, &status, 0);
  }
  bool ended() {
    if (there && ::waitpid(pid, &status, WNOHANG) == pid) there = false;
    return !there;
  }
  void step() {
    std::ofstream(place.path / "step").flush();
    REQUIRE(soon([&] { return !fs::exists(place.path / "step"); }));
  }
  /// It verifies itself and ends.
  std::string verdict(int steps = 0) {
    std::ofstream(place.path / ".check") << steps;
    fs::rename(place.path / ".check", place.path / "check");
    REQUIRE(soon([&] { return ended(); }, 60));
    return text_of(place.path / "result").substr(0, 4);
  }
  CUprocessState state() {
    CUprocessState out{};
    REQUIRE(cu().cuCheckpointProcessGetState(pid, &out) == CUDA_SUCCESS);
    return out;
  }
  CUresult lock(unsigned timeout_ms = 20000) {
    CUcheckpointLockArgs args{};
    args.timeoutMs = timeout_ms;
    return cu().cuCheckpointProcessLock(pid, &args);
  }
  CUresult checkpoint() {
    CUcheckpointCheckpointArgs args{};
    return cu().cuCheckpointProcessCheckpoint(pid, &args);
  }
  CUresult restore(std::vector<CUcheckpointGpuPair> pairs = {}) {
    CUcheckpointRestoreArgs args{};
    args.gpuPairs = pairs.data();
    args.gpuPairsCount = static_cast<unsigned>(pairs.size());
    return cu().cuCheckpointProcessRestore(pid, &args);
  }
  CUresult unlock() {
    CUcheckpointUnlockArgs args{};
    return cu().cuCheckpointProcessUnlock(pid, &args);
  }
  std::vector<int> threads() const {
    std::vector<int> out;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/task"))
      out.push_back(std::stoi(entry.path().filename()));
    return out;
  }
  /// What it holds of the device: memfds and their mappings.
  int device_files() const {
    int found = 0;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
      std::error_code ec;
      found += fs::read_symlink(entry.path(), ec).string().find("standin-") != std::string::npos;
    }
    std::istringstream maps(text_of("/proc/" + std::to_string(pid) + "/maps"));
    for (std::string line; std::getline(maps, line);) found += line.find("memfd:standin-") != std::string::npos;
    return found;
  }
};

/// Every thread but one held by ptrace, as ckpt holds them.
struct Stopped {
  std::vector<int> tids;
  Stopped(const Program& program, int except) {
    for (int tid : program.threads()) {
      if (tid == except) continue;
      REQUIRE(::ptrace(PTRACE_SEIZE, tid, 0, 0) == 0);
      REQUIRE(::ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0);
      REQUIRE(::waitpid(tid, nullptr, __WALL) == tid);
      tids.push_back(tid);
    }
  }
  ~Stopped() {
    for (int tid : tids) ::ptrace(PTRACE_DETACH, tid, 0, 0);
  }
};

size_t free_bytes(int device) {
  CUcontext context;
  size_t free = 0, total = 0;
  REQUIRE(cu().cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
  REQUIRE(cu().cuCtxSetCurrent(context) == CUDA_SUCCESS);
  REQUIRE(cu().cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
  return free;
}

CUuuid uuid(int device) {
  CUuuid out;
  REQUIRE(cu().cuDeviceGetUuid_v2(&out, device) == CUDA_SUCCESS);
  return out;
}

}  // namespace

TEST_CASE(
    "checkpoint and restore while all but the restore thread stand still; training goes on as if nothing had been") {
  Program program("train", {}, {{"CKPT_STANDIN_SEED", "7"}});
  CHECK(program.state() == CU_PROCESS_STATE_RUNNING);
  size_t before = free_bytes(0);
  int restorer = 0;
  REQUIRE(cu().cuCheckpointProcessGetRestoreThreadId(program.pid, &restorer) == CUDA_SUCCESS);
  for (int round = 0; round < 3; ++round) {
    REQUIRE(program.lock() == CUDA_SUCCESS);
    CHECK(program.state() == CU_PROCESS_STATE_LOCKED);
    Stopped stopped(program, restorer);
    CHECK(stopped.tids.size() >= 3);
    CHECK(program.device_files() > 0);
    REQUIRE(program.checkpoint() == CUDA_SUCCESS);
    CHECK(program.state() == CU_PROCESS_STATE_CHECKPOINTED);
    CHECK(program.device_files() == 0);
    CHECK(free_bytes(0) > before);
    REQUIRE(program.restore() == CUDA_SUCCESS);
    CHECK(program.state() == CU_PROCESS_STATE_LOCKED);
    CHECK(free_bytes(0) == before);
    REQUIRE(program.unlock() == CUDA_SUCCESS);
  }
  CHECK(program.state() == CU_PROCESS_STATE_RUNNING);
  CHECK(program.verdict() == "pass");
}

TEST_CASE("states: what cannot be done now is refused and changes nothing") {
  Program program("train");
  CHECK(program.checkpoint() == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(program.restore() == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(program.unlock() == CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE(program.lock() == CUDA_SUCCESS);
  CHECK(program.lock() == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(program.restore() == CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE(program.checkpoint() == CUDA_SUCCESS);
  CHECK(program.checkpoint() == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(program.unlock() == CUDA_ERROR_ILLEGAL_STATE);
  REQUIRE(program.restore() == CUDA_SUCCESS);
  REQUIRE(program.unlock() == CUDA_SUCCESS);
  CHECK(program.verdict() == "pass");
}

TEST_CASE(
    "whom: a thread's number means its process; a process without a driver, and none at all, are invalid values") {
  Program program("train");
  CUprocessState state{};
  for (int tid : program.threads()) CHECK(cu().cuCheckpointProcessGetState(tid, &state) == CUDA_SUCCESS);
  CHECK(cu().cuCheckpointProcessGetState(1, &state) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu().cuCheckpointProcessGetState(0x7ffffff0, &state) == CUDA_ERROR_INVALID_VALUE);
  CUcheckpointLockArgs args{};
  args.reserved1[3] = 1;
  CHECK(cu().cuCheckpointProcessLock(program.pid, &args) == CUDA_ERROR_INVALID_VALUE);
  CHECK(program.verdict() == "pass");
}

TEST_CASE("lock: work that does not end is waited for no longer than was said, and the program runs on") {
  Program program("busy");
  CHECK(program.lock(100) == CUDA_ERROR_NOT_READY);
  CHECK(program.state() == CU_PROCESS_STATE_RUNNING);
  program.step();
  CHECK(program.lock() == CUDA_SUCCESS);
  CHECK(program.unlock() == CUDA_SUCCESS);
  CHECK(program.verdict(1) == "pass");
}

TEST_CASE("capacity: what a checkpoint frees another process may take, and then the restore waits for it") {
  Program program("train", {"3145728"});  // 2 x 12 MiB and little more
  REQUIRE(program.lock() == CUDA_SUCCESS);
  REQUIRE(program.checkpoint() == CUDA_SUCCESS);
  REQUIRE(free_bytes(0) == 64u << 20);
  CUdeviceptr taken;
  REQUIRE(cu().cuMemAlloc_v2(&taken, 40 << 20) == CUDA_SUCCESS);
  CHECK(program.restore() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(program.state() == CU_PROCESS_STATE_CHECKPOINTED);
  REQUIRE(cu().cuMemFree_v2(taken) == CUDA_SUCCESS);
  REQUIRE(program.restore() == CUDA_SUCCESS);
  CHECK(cu().cuMemAlloc_v2(&taken, 40 << 20) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(program.unlock() == CUDA_SUCCESS);
  CHECK(program.verdict() == "pass");
  CHECK(free_bytes(0) == 64u << 20);  // it has ended
}

TEST_CASE("death in the middle of a checkpoint and of a restore: the caller is told, and the memory is free again") {
  for (const char* fault : {"targetCheckpointMiddle:1:die", "targetRestoreMiddle:1:die"}) {
    CAPTURE(std::string(fault));
    Program program("train", {}, {{"CKPT_STANDIN_FAULT", fault}});
    REQUIRE(program.lock() == CUDA_SUCCESS);
    CUresult result = program.checkpoint();
    if (result == CUDA_SUCCESS) result = program.restore();
    CHECK(result == CUDA_ERROR_OPERATING_SYSTEM);
    CHECK(soon([&] { return program.ended(); }));
    CHECK(free_bytes(0) == 64u << 20);
  }
}

TEST_CASE("FAILED is for good") {
  Program program("train", {}, {{"CKPT_STANDIN_FAULT", "targetRestore:1:failed"}});
  REQUIRE(program.lock() == CUDA_SUCCESS);
  REQUIRE(program.checkpoint() == CUDA_SUCCESS);
  CHECK(program.restore() == CUDA_ERROR_UNKNOWN);
  CHECK(program.state() == CU_PROCESS_STATE_FAILED);
  CHECK(program.restore() == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(program.unlock() == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("pairs of GPUs: all that are seen are named, once, and exist") {
  Program program("two_gpus");
  REQUIRE(program.lock() == CUDA_SUCCESS);
  REQUIRE(program.checkpoint() == CUDA_SUCCESS);
  CUuuid nobody{};
  CHECK(program.restore({{uuid(0), uuid(1)}}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(program.restore({{uuid(0), uuid(1)}, {uuid(1), nobody}}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(program.state() == CU_PROCESS_STATE_CHECKPOINTED);
  REQUIRE(program.restore({{uuid(0), uuid(1)}, {uuid(1), uuid(0)}}) == CUDA_SUCCESS);
  REQUIRE(program.unlock() == CUDA_SUCCESS);
  CHECK(program.verdict() == "pass");
}

TEST_CASE("one GPU's process goes to the other GPU") {
  Program program("train");
  size_t other = free_bytes(1);
  REQUIRE(program.lock() == CUDA_SUCCESS);
  REQUIRE(program.checkpoint() == CUDA_SUCCESS);
  CHECK(program.restore({{uuid(0), uuid(1)}}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(program.restore({{uuid(0), uuid(1)}, {uuid(1), uuid(1)}}) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(program.restore({{uuid(0), uuid(1)}, {uuid(1), uuid(0)}}) == CUDA_SUCCESS);
  CHECK(free_bytes(1) < other);
  CHECK(free_bytes(0) == 64u << 20);
  REQUIRE(program.unlock() == CUDA_SUCCESS);
  CHECK(program.verdict() == "pass");
}

TEST_CASE("managed memory and memory shared between processes are not supported, and the process can be let go") {
  for (const char* what : {"managed", "ipc"}) {
    CAPTURE(std::string(what));
    Program program("refused", {what});
    REQUIRE(program.lock() == CUDA_SUCCESS);
    CHECK(program.checkpoint() == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(program.state() == CU_PROCESS_STATE_LOCKED);
    REQUIRE(program.unlock() == CUDA_SUCCESS);
    CHECK(program.verdict() == "pass");
  }
}
