#include "plugins/cuda/process_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <thread>

#include "plugins/cuda/driver.h"
#include "plugins/cuda/memory_info.h"
#include "plugins/cuda/uuid.h"

namespace ckpt::cuda {

namespace {

constexpr int kFirstCudaVersion = 12080;
constexpr auto kPatience = std::chrono::seconds(10);
constexpr auto kStep = std::chrono::milliseconds(1);

std::string process(int pid) { return fmt::format("process {}", pid); }

class CudaProcessControl final : public device::ProcessControl {
 public:
  explicit CudaProcessControl(std::shared_ptr<Driver> driver) : driver_(std::move(driver)), memory_(*driver_) {}

  std::string version() const override { return driver_->version(); }

  Result<device::ProcessState> state(int pid) override {
    auto asked = std::make_shared<api::CUprocessState>(api::CU_PROCESS_STATE_RUNNING);
    auto ask = [driver = driver_, pid, asked] { return driver->call().cuCheckpointProcessGetState(pid, asked.get()); };
    CKPT_TRY_ASSIGN(const api::CUresult result, answer_in_time(pid, ask));
    // What drivers say of a process that has no context of theirs; cuda.h does not tell them apart.
    if (result == api::CUDA_ERROR_INVALID_VALUE || result == api::CUDA_ERROR_NOT_INITIALIZED ||
        result == api::CUDA_ERROR_NOT_FOUND || result == api::CUDA_ERROR_INVALID_CONTEXT ||
        result == api::CUDA_ERROR_OPERATING_SYSTEM)
      return device::ProcessState::kNone;
    CKPT_TRY(driver_->check(result, process(pid), "the driver does not tell its state"));
    switch (*asked) {
      case api::CU_PROCESS_STATE_RUNNING: return device::ProcessState::kRunning;
      case api::CU_PROCESS_STATE_LOCKED: return device::ProcessState::kLocked;
      case api::CU_PROCESS_STATE_CHECKPOINTED: return device::ProcessState::kCheckpointed;
      case api::CU_PROCESS_STATE_FAILED: return device::ProcessState::kFailed;
      case api::CU_PROCESS_STATE_CHECKPOINTING:
      case api::CU_PROCESS_STATE_RESTORING:
        return fail(Code::kBusy, process(pid), "another program is moving its GPU state to or from storage of its own");
    }
    return fail(Code::kUnsupported, process(pid),
                fmt::format("the driver says that it is in a state {}", static_cast<int>(*asked)));
  }

  Result<int> restore_thread(int pid) override {
    auto tid = std::make_shared<int>(0);
    auto ask = [driver = driver_, pid, tid] {
      return driver->call().cuCheckpointProcessGetRestoreThreadId(pid, tid.get());
    };
    CKPT_TRY_ASSIGN(const api::CUresult result, answer_in_time(pid, ask));
    CKPT_TRY(driver_->check(result, process(pid), "the driver does not tell its restore thread"));
    return *tid;
  }

  Result<void> lock(int pid, uint64_t timeout_us) override {
    constexpr uint64_t kMost = std::numeric_limits<unsigned>::max();
    api::CUcheckpointLockArgs arguments{};
    arguments.timeoutMs = static_cast<unsigned>(std::clamp<uint64_t>(timeout_us / 1000, 1, kMost));
    return done(driver_->call().cuCheckpointProcessLock(pid, &arguments), pid, api::CU_PROCESS_STATE_LOCKED,
                "its GPU work cannot be held");
  }

  Result<void> checkpoint(int pid) override {
    api::CUcheckpointCheckpointArgs arguments{};
    return done(driver_->call().cuCheckpointProcessCheckpoint(pid, &arguments), pid, api::CU_PROCESS_STATE_CHECKPOINTED,
                "its GPU state cannot be saved");
  }

  Result<void> restore(int pid, const device::GpuMap& gpus) override {
    CKPT_TRY(driver_->initialise());
    std::vector<api::CUcheckpointGpuPair> pairs;
    for (const auto& [from, to] : gpus) {
      CKPT_TRY_ASSIGN(api::CUuuid old_uuid, parse_uuid(from));
      CKPT_TRY_ASSIGN(api::CUuuid new_uuid, parse_uuid(to));
      pairs.push_back({old_uuid, new_uuid});
    }
    api::CUcheckpointRestoreArgs arguments{};
    arguments.gpuPairs = pairs.empty() ? nullptr : pairs.data();
    arguments.gpuPairsCount = static_cast<unsigned>(pairs.size());
    return done(driver_->call().cuCheckpointProcessRestore(pid, &arguments), pid, api::CU_PROCESS_STATE_LOCKED,
                "its GPU state cannot be put back");
  }

  Result<void> unlock(int pid) override {
    api::CUcheckpointUnlockArgs arguments{};
    return done(driver_->call().cuCheckpointProcessUnlock(pid, &arguments), pid, api::CU_PROCESS_STATE_RUNNING,
                "its GPU calls cannot be let go");
  }

  Result<std::vector<device::Gpu>> gpus() override { return memory_.gpus(); }
  Result<std::vector<device::GpuShare>> memory_of(int pid) override { return memory_.of_process(pid); }

 private:
  /// Where a caller was killed in the middle of a call, drivers have been seen to answer the next one with the result
  /// of the one before it (checkpoint-restore/criu pull request 2547): what is said to be done is looked at.
  Result<void> done(api::CUresult result, int pid, api::CUprocessState wanted, const char* otherwise) const {
    CKPT_TRY(driver_->check(result, process(pid), otherwise));
    auto asked = std::make_shared<api::CUprocessState>(wanted);
    auto ask = [driver = driver_, pid, asked] { return driver->call().cuCheckpointProcessGetState(pid, asked.get()); };
    for (auto until = std::chrono::steady_clock::now() + kPatience;; std::this_thread::sleep_for(kStep)) {
      const auto told = answer_in_time(pid, ask);
      if (!told || *told != api::CUDA_SUCCESS || *asked == wanted) return {};  // it has ended, or it is so
      if (std::chrono::steady_clock::now() > until) break;
    }
    return fail(Code::kIo, process(pid),
                fmt::format("{}: the driver says that it is done, and that the process is in state {}", otherwise,
                            static_cast<int>(*asked)));
  }

  /// Calls that merely ask hang for processes in NCCL's calls (NVIDIA/cuda-checkpoint issue 30). The thread is left
  /// behind then.
  static Result<api::CUresult> answer_in_time(int pid, std::function<api::CUresult()> ask) {
    std::packaged_task<api::CUresult()> task(std::move(ask));
    auto answer = task.get_future();
    std::thread(std::move(task)).detach();
    if (answer.wait_for(kPatience) == std::future_status::ready) return answer.get();
    return fail(Code::kBusy, process(pid), "the driver does not answer for it");
  }

  std::shared_ptr<Driver> driver_;
  MemoryInfo memory_;
};

}  // namespace

Result<std::unique_ptr<device::ProcessControl>> open_process_control() {
  CKPT_TRY_ASSIGN(std::shared_ptr<Driver> driver, Driver::open());
  const api::Functions& call = driver->call();
  const bool complete = call.cuCheckpointProcessGetState && call.cuCheckpointProcessGetRestoreThreadId &&
                        call.cuCheckpointProcessLock && call.cuCheckpointProcessCheckpoint &&
                        call.cuCheckpointProcessRestore && call.cuCheckpointProcessUnlock;
  if (!complete || driver->cuda_version() < kFirstCudaVersion)
    return fail(Code::kUnsupported, driver->version(),
                "cannot checkpoint processes: that begins with CUDA 12.8 (driver 570)");
  return std::unique_ptr<device::ProcessControl>(new CudaProcessControl(std::move(driver)));
}

}  // namespace ckpt::cuda
