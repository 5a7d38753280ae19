#include "lib/engine/device_hold.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "lib/engine/gpu_room.h"
#include "lib/engine/suspend.h"

using namespace ckpt;
using namespace ckpt::engine;
using device::ProcessState;

namespace {

/// A process that has loaded a library with the driver's name, and sleeps.
class CudaLike {
 public:
  explicit CudaLike(const std::filesystem::path& folder) {
    const auto path = folder / "libcuda.so.1";
    std::ofstream(path) << std::string(4096, 'x');
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int fd = ::open(path.c_str(), O_RDONLY);
      if (::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED) ::_exit(1);
      for (;;) ::pause();
    }
    for (int i = 0; i < 5000 && !may_use_gpu(pid_); ++i) ::usleep(1000);
  }
  ~CudaLike() { end(); }
  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int pid() const { return pid_; }

 private:
  int pid_;
};

struct World {
  std::map<int, ProcessState> states;
  std::vector<std::string> calls;
  std::map<std::string, Code> failing;  ///< "lock 1": the call for the second process
  std::set<std::string> failing_once;
  std::vector<int> order;
  uint64_t free = 100;
  device::GpuMap map;
  std::string name(const char* call, int pid) const {
    return std::string(call) + " " + std::to_string(std::find(order.begin(), order.end(), pid) - order.begin());
  }
};

class FakeControl final : public device::ProcessControl {
 public:
  explicit FakeControl(World& world) : world_(world) {}
  std::string version() const override { return "driver 1, CUDA 13.0"; }
  Result<ProcessState> state(int pid) override { return world_.states[pid]; }
  Result<int> restore_thread(int pid) override { return pid; }
  Result<void> lock(int pid, uint64_t) override {
    return step("lock", pid, ProcessState::kRunning, ProcessState::kLocked, 0);
  }
  Result<void> checkpoint(int pid) override {
    return step("checkpoint", pid, ProcessState::kLocked, ProcessState::kCheckpointed, 10);
  }
  Result<void> restore(int pid, const device::GpuMap& map) override {
    world_.map = map;
    return step("restore", pid, ProcessState::kCheckpointed, ProcessState::kLocked, -10);
  }
  Result<void> unlock(int pid) override {
    return step("unlock", pid, ProcessState::kLocked, ProcessState::kRunning, 0);
  }
  Result<std::vector<device::Gpu>> gpus() override {
    return std::vector<device::Gpu>{{"GPU-a", "Emulated", 1000, world_.free}, {"GPU-b", "Emulated", 1000, 1000}};
  }

  Result<std::vector<device::GpuShare>> memory_of(int) override { return fail(Code::kUnsupported, "", "not told"); }

 private:
  Result<void> step(const char* call, int pid, ProcessState from, ProcessState to, int freed) {
    const std::string name = world_.name(call, pid);
    world_.calls.push_back(name);
    if (world_.failing_once.erase(name) != 0) return fail(Code::kIo, "", name + " fails");
    if (auto failure = world_.failing.find(name); failure != world_.failing.end())
      return fail(failure->second, "", name + " fails");
    CHECK_MESSAGE(world_.states[pid] == from, name);
    world_.states[pid] = to;
    world_.free += static_cast<uint64_t>(freed);
    return {};
  }
  World& world_;
};

struct Fixture {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ckpt-device-hold-" + std::to_string(::getpid()));
  World world;
  GpuOptions options;
  std::vector<std::unique_ptr<CudaLike>> processes;
  std::vector<int> pids;

  explicit Fixture(int count = 2) {
    std::filesystem::create_directories(folder);
    for (int i = 0; i < count; ++i) {
      processes.push_back(std::make_unique<CudaLike>(folder));
      pids.push_back(processes.back()->pid());
      world.states[pids.back()] = ProcessState::kRunning;
    }
    world.order = pids;
    options.open = [this]() -> Result<std::unique_ptr<device::ProcessControl>> {
      return std::unique_ptr<device::ProcessControl>(new FakeControl(world));
    };
  }
  ~Fixture() { std::filesystem::remove_all(folder); }
  bool all(ProcessState state) const {
    return std::all_of(pids.begin(), pids.end(), [&](int pid) { return world.states.at(pid) == state; });
  }
};

using Calls = std::vector<std::string>;

}  // namespace

TEST_CASE("device hold: all are locked before the first is checkpointed, all restored before the first is unlocked") {
  Fixture f;
  DeviceHold hold(f.options);
  REQUIRE(hold.find(f.pids));
  CHECK(hold.pids() == f.pids);
  REQUIRE(hold.lock());
  REQUIRE(hold.checkpoint(nullptr));
  CHECK(hold.state().driver == "driver 1, CUDA 13.0");
  REQUIRE(hold.state().used.size() == 1);
  CHECK(hold.state().used[0] == store::GpuUse{"GPU-a", "Emulated", 20});
  REQUIRE(hold.give_back(nullptr));
  REQUIRE(hold.give_back(nullptr));
  CHECK(f.world.calls ==
        Calls{"lock 0", "lock 1", "checkpoint 0", "checkpoint 1", "restore 0", "restore 1", "unlock 0", "unlock 1"});
  CHECK(f.all(ProcessState::kRunning));
}

TEST_CASE("device hold: whatever call fails, all run again as they were") {
  for (const char* failing : {"lock 0", "lock 1", "checkpoint 0", "checkpoint 1"}) {
    CAPTURE(failing);
    Fixture f;
    f.world.failing[failing] = Code::kBusy;
    DeviceHold hold(f.options);
    REQUIRE(hold.find(f.pids));
    auto locked = hold.lock();
    auto done = locked ? hold.checkpoint(nullptr) : locked;
    REQUIRE_FALSE(done);
    CHECK(done.error().code == Code::kBusy);
    REQUIRE(hold.give_back(nullptr));
    CHECK(f.all(ProcessState::kRunning));
    CHECK(f.world.free == 100);
  }
}

TEST_CASE("device hold: a process that cannot be put back is told, with what frees it, and the others are put back") {
  Fixture f;
  f.world.failing["restore 0"] = Code::kNoRoom;
  DeviceHold hold(f.options);
  REQUIRE(hold.find(f.pids));
  REQUIRE(hold.lock());
  REQUIRE(hold.checkpoint(nullptr));
  auto done = hold.give_back(nullptr);
  REQUIRE_FALSE(done);
  CHECK(done.error().code == Code::kTargetAltered);
  CHECK(done.error().hint.find("ckpt resume -p " + std::to_string(f.pids[0])) != std::string::npos);
  CHECK(f.world.states[f.pids[0]] == ProcessState::kCheckpointed);
  CHECK(f.world.states[f.pids[1]] == ProcessState::kRunning);
}

TEST_CASE("device hold: one that has ended meanwhile is no failure") {
  Fixture f;
  DeviceHold hold(f.options);
  REQUIRE(hold.find(f.pids));
  REQUIRE(hold.lock());
  REQUIRE(hold.checkpoint(nullptr));
  f.world.failing["restore 0"] = Code::kIo;
  f.processes[0]->end();
  CHECK(hold.give_back(nullptr));
  CHECK(f.world.states[f.pids[1]] == ProcessState::kRunning);
}

TEST_CASE("device hold: processes in other states, and the policies") {
  Fixture f;
  DeviceHold hold(f.options);
  SUBCASE("suspended ones stay so, those without a context are none") {
    f.world.states[f.pids[0]] = ProcessState::kCheckpointed;
    f.world.states[f.pids[1]] = ProcessState::kNone;
    CHECK(hold.find(f.pids));
    CHECK(hold.empty());
  }
  SUBCASE("one that somebody else holds") {
    f.world.states[f.pids[1]] = ProcessState::kLocked;
    auto found = hold.find(f.pids);
    REQUIRE_FALSE(found);
    CHECK(found.error().code == Code::kBusy);
  }
  SUBCASE("one that has failed") {
    f.world.states[f.pids[1]] = ProcessState::kFailed;
    auto found = hold.find(f.pids);
    REQUIRE_FALSE(found);
    CHECK(found.error().code == Code::kUnsupported);
  }
  SUBCASE("off") {
    f.options.policy = GpuOptions::Policy::kOff;
    CHECK(hold.find(f.pids));
    CHECK(hold.empty());
  }
  SUBCASE("only") {
    f.options.policy = GpuOptions::Policy::kOnly;
    CHECK(hold.find(f.pids));
    auto found = hold.find({::getpid()});
    REQUIRE_FALSE(found);
    CHECK(found.error().code == Code::kUsage);
  }
  SUBCASE("a machine without a driver runs programs that merely load the library") {
    f.options.open = [] {
      return Result<std::unique_ptr<device::ProcessControl>>(Error(Code::kUnsupported, "", "none"));
    };
    CHECK(hold.find(f.pids));
    CHECK(hold.empty());
  }
}

TEST_CASE("gpus of an image: there, free, mapped") {
  World world;
  FakeControl control(world);
  const store::GpuState state{"driver 1", {{"GPU-a", "Emulated", 60}}, {"GPU-a"}};
  auto plain = check_gpus(control, state, {});
  REQUIRE(plain);
  CHECK(plain->empty());
  world.free = 59;
  auto full = check_gpus(control, state, {});
  REQUIRE_FALSE(full);
  CHECK(full.error().code == Code::kNoRoom);
  auto mapped = check_gpus(control, state, {{"GPU-a", "GPU-b"}});
  REQUIRE(mapped);
  CHECK(*mapped == device::GpuMap{{"GPU-a", "GPU-b"}});
  auto unknown = check_gpus(control, state, {{"GPU-c", "GPU-b"}});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().code == Code::kUsage);
  auto gone = check_gpus(control, {"driver 1", {{"GPU-z", "Emulated", 1}}, {}}, {});
  REQUIRE_FALSE(gone);
  CHECK(gone.error().code == Code::kNotFound);
}

TEST_CASE("gpus of an image: every one that was there is told, and no two go to one") {
  World world;
  FakeControl control(world);
  const store::GpuState both{"driver 1", {{"GPU-a", "Emulated", 60}}, {"GPU-a", "GPU-b"}};
  CHECK(check_gpus(control, both, {{"GPU-a", "GPU-b"}}).value() ==
        device::GpuMap{{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-a"}});
  CHECK(check_gpus(control, both, {{"GPU-b", "GPU-a"}}).value() ==
        device::GpuMap{{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-a"}});
  CHECK(check_gpus(control, both, {{"GPU-a", "GPU-a"}, {"GPU-b", "GPU-b"}}).value() ==
        device::GpuMap{{"GPU-a", "GPU-a"}, {"GPU-b", "GPU-b"}});
  auto twice = check_gpus(control, both, {{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-b"}});
  REQUIRE_FALSE(twice);
  CHECK(twice.error().code == Code::kUsage);
  auto nowhere = check_gpus(control, both, {{"GPU-a", "GPU-z"}});
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().code == Code::kNotFound);
  // Of a machine with more of them: those that were not used may have no place here.
  const store::GpuState many{"driver 1", {{"GPU-x", "Emulated", 60}}, {"GPU-w", "GPU-x", "GPU-y", "GPU-z"}};
  auto fewer = check_gpus(control, many, {{"GPU-x", "GPU-b"}});
  REQUIRE(fewer);
  CHECK(*fewer == device::GpuMap{{"GPU-w", "GPU-a"}, {"GPU-x", "GPU-b"}});
  // An older image tells only of those that it used.
  CHECK(check_gpus(control, {"driver 1", {{"GPU-a", "Emulated", 60}}, {}}, {{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-a"}})
            .value() == device::GpuMap{{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-a"}});
}

TEST_CASE("room in host memory: what the driver would move, and both numbers where it does not fit") {
  const int self = ::getpid();
  CHECK(check_host_room({{self, 4096}}));
  const auto rooms = host_room_for({{self, 4096}, {self, 4096}});
  REQUIRE_FALSE(rooms.empty());
  CHECK(rooms[0].needed == 8192);
  auto none = check_host_room({{self, uint64_t{1} << 50}});
  REQUIRE_FALSE(none);
  CHECK(none.error().code == Code::kNoRoom);
  CHECK(none.error().message.find("1.00 PiB") != std::string::npos);
}

TEST_CASE("suspend and resume: there and back, in parts, without room") {
  Fixture f(1);
  const int pid = f.pids[0];
  Cancel cancel;
  auto suspended = suspend({pid}, f.options, cancel);
  REQUIRE(suspended);
  CHECK(suspended->pids == f.pids);
  CHECK(f.all(ProcessState::kCheckpointed));
  auto again = suspend({pid}, f.options, cancel);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == Code::kNotFound);
  SUBCASE("back") {
    auto resumed = resume({pid}, f.options);
    REQUIRE(resumed);
    CHECK(resumed->pids == f.pids);
    CHECK(f.all(ProcessState::kRunning));
    auto nothing = resume({pid}, f.options);
    REQUIRE(nothing);
    CHECK(nothing->pids.empty());
  }
  SUBCASE("the memory is taken: nothing is tried") {
    f.world.free = 9;
    auto resumed = resume({pid}, f.options);
    REQUIRE_FALSE(resumed);
    CHECK(resumed.error().code == Code::kNoRoom);
    CHECK(resumed.error().target_state == "suspended, as it was");
    CHECK(f.world.calls == Calls{"lock 0", "checkpoint 0"});
  }
  SUBCASE("another resume has it locked for a moment") {
    f.world.states[pid] = ProcessState::kLocked;
    f.world.failing_once = {"unlock 0"};
    f.world.calls.clear();
    REQUIRE(resume({pid}, f.options));
    CHECK(f.world.calls == Calls{"unlock 0", "unlock 0"});
    CHECK(f.all(ProcessState::kRunning));
  }
  SUBCASE("it cannot be unlocked") {
    f.world.states[pid] = ProcessState::kLocked;
    f.world.failing["unlock 0"] = Code::kIo;
    auto resumed = resume({pid}, f.options);
    REQUIRE_FALSE(resumed);
    CHECK(resumed.error().code == Code::kIo);
  }
  SUBCASE("merely locked") {
    f.world.states[pid] = ProcessState::kLocked;
    REQUIRE(resume({pid}, f.options));
    CHECK(f.all(ProcessState::kRunning));
  }
}

TEST_CASE("suspend: a lock that times out leaves all running") {
  Fixture f(1);
  f.world.failing["lock 0"] = Code::kBusy;
  Cancel cancel;
  auto suspended = suspend({f.pids[0]}, f.options, cancel);
  REQUIRE_FALSE(suspended);
  CHECK(suspended.error().code == Code::kBusy);
  CHECK(suspended.error().target_state == "running, as it was");
  CHECK(f.all(ProcessState::kRunning));
}
