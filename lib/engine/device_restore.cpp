#include "lib/engine/device_restore.h"

#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <new>

#include "lib/engine/gpu_room.h"
#include "lib/engine/owned_memory.h"
#include "lib/proc/run_alone.h"

namespace ckpt::engine {

DeviceRestore::DeviceRestore(const store::TreeImage& tree, const GpuOptions& options) : options_(&options) {
  for (const store::ProcessImage& process : tree.processes) {
    if (!process.zombie) all_.push_back(process.pid);
    if (process.gpu_thread == 0) continue;
    pids_.push_back(process.pid);
    threads_.push_back(process.gpu_thread);
  }
}

Result<DeviceRestore> DeviceRestore::prepare(const store::TreeImage& tree, const GpuOptions& options) {
  DeviceRestore out(tree, options);
  if (tree.gpu.driver.empty() || options.policy == GpuOptions::Policy::kOff) return out;
  auto opened = options.open ? options.open() : fail(Code::kUnsupported, "", "this ckpt has no GPU driver");
  if (!opened)
    return Error(std::move(opened).error()).with_cause("the image holds GPU state, taken by " + tree.gpu.driver);
  out.control_ = std::move(*opened);
  CKPT_TRY_ASSIGN(out.map_, check_gpus(*out.control_, with_owned_memory(tree), options.map));
  return out;
}

/// To end a process that has a device again may hang the machine (NVIDIA/cuda-checkpoint issue 53).
void DeviceRestore::let_go(const Run& run) {
  for (size_t i = 0; i < pids_.size(); ++i) {
    (void)run(i, [&]() -> Result<void> {
      CKPT_TRY_ASSIGN(const device::ProcessState state, control_->state(pids_[i]));
      if (state == device::ProcessState::kRunning) CKPT_TRY(control_->lock(pids_[i], options_->lock_timeout_us));
      return state == device::ProcessState::kCheckpointed ? Result<void>() : control_->checkpoint(pids_[i]);
    });
  }
}

Result<void> DeviceRestore::run() {
  const Run alone = [this](size_t i, const auto& work) { return proc::run_alone(pids_[i], threads_[i], work); };
  Result<void> result;
  for (size_t i = 0; i < pids_.size() && result; ++i)
    result = alone(i, [&] { return control_->restore(pids_[i], map_); });
  for (size_t i = 0; i < pids_.size() && result; ++i) result = alone(i, [&] { return control_->unlock(pids_[i]); });
  if (!result) let_go(alone);
  return result;
}

Result<void> DeviceRestore::fill(const store::ImageReader& image, bool lazy, const Cancel& cancel) {
  auto filled = [&]() -> Result<uint64_t> {
    try {
      return restore_owned(image, *options_, lazy, cancel);
    } catch (const std::bad_alloc&) {
      return fail(Code::kNoRoom, "", "out of memory");
    }
  }();
  if (filled) return {};
  let_go([](size_t, const auto& work) { return work(); });
  for (int pid : all_) ::kill(pid, SIGKILL);
  while (::waitpid(all_[0], nullptr, 0) < 0 && errno == EINTR) {  // the root is a child of ours
  }
  return std::move(filled).error();
}

}  // namespace ckpt::engine
