#include "plugins/cuda/memory_info.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "plugins/cuda/uuid.h"

namespace ckpt::cuda {

namespace {

/// The part of NVML (nvml.h, r580) that is asked; it always speaks of the driver that runs.
struct Nvml {
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Process {
    unsigned pid;
    unsigned long long used;  ///< kNotTold: not on this system
    unsigned gpu_instance, compute_instance;
  };
  static constexpr unsigned long long kNotTold = ~0ull;
  int (*init)() = nullptr;
  int (*handle_by_uuid)(const char*, void**) = nullptr;
  int (*memory_info)(void*, Memory*) = nullptr;
  int (*processes)(void*, unsigned*, Process*) = nullptr;  ///< null before r470

  /// Null where it cannot be used. Beside a driver that was named by hand it is that file's, if there is one in it.
  static const Nvml* get() {
    static const Nvml nvml = load();
    return nvml.init != nullptr ? &nvml : nullptr;
  }

 private:
  static Nvml load() {
    Nvml out;
    const char* named = std::getenv("CKPT_CUDA_DRIVER");
    void* library = ::dlopen(named != nullptr && *named != 0 ? named : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return out;
    out.init = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
    out.handle_by_uuid = reinterpret_cast<int (*)(const char*, void**)>(::dlsym(library, "nvmlDeviceGetHandleByUUID"));
    out.memory_info = reinterpret_cast<int (*)(void*, Memory*)>(::dlsym(library, "nvmlDeviceGetMemoryInfo"));
    out.processes = reinterpret_cast<int (*)(void*, unsigned*, Process*)>(
        ::dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
    if (out.handle_by_uuid == nullptr || out.memory_info == nullptr || out.init == nullptr || out.init() != 0)
      out.init = nullptr;
    return out;
  }
};

}  // namespace

MemoryInfo::~MemoryInfo() {
  for (const Device& device : devices_) {
    if (device.context != nullptr) (void)driver_.call().cuDevicePrimaryCtxRelease_v2(device.device);
  }
}

Result<void> MemoryInfo::find() {
  if (!devices_.empty()) return {};
  CKPT_TRY(driver_.initialise());
  const api::Functions& call = driver_.call();
  int count = 0;
  CKPT_TRY(driver_.check(call.cuDeviceGetCount(&count), "the CUDA driver", "does not tell its devices"));
  std::vector<Device> found;
  for (int i = 0; i < count; ++i) {
    Device device;
    char name[256] = {};
    api::CUuuid uuid{};
    size_t total = 0;
    CKPT_TRY(driver_.check(call.cuDeviceGet(&device.device, i), "the CUDA driver", "does not tell a device"));
    CKPT_TRY(driver_.check(call.cuDeviceGetName(name, sizeof name - 1, device.device), "the CUDA driver",
                           "does not tell a device's name"));
    CKPT_TRY(driver_.check(call.cuDeviceGetUuid_v2(&uuid, device.device), name, "has no UUID"));
    CKPT_TRY(driver_.check(call.cuDeviceTotalMem_v2(&total, device.device), name, "does not tell its memory"));
    device.gpu = {uuid_text(uuid), name, total, 0};
    const Nvml* nvml = Nvml::get();
    if (nvml != nullptr && nvml->handle_by_uuid(device.gpu.uuid.c_str(), &device.nvml) != 0) device.nvml = nullptr;
    found.push_back(std::move(device));
  }
  devices_ = std::move(found);  // all of them, or another time
  return {};
}

Result<void> MemoryInfo::ask_context(Device& device) {
  const api::Functions& call = driver_.call();
  if (device.context == nullptr) {
    CKPT_TRY(driver_.check(call.cuDevicePrimaryCtxRetain(&device.context, device.device), device.gpu.uuid,
                           "cannot be opened"));
  }
  CKPT_TRY(driver_.check(call.cuCtxPushCurrent_v2(device.context), device.gpu.uuid, "cannot be used"));
  size_t free = 0, total = 0;
  auto asked = driver_.check(call.cuMemGetInfo_v2(&free, &total), device.gpu.uuid, "does not tell its free memory");
  api::CUcontext popped = nullptr;
  (void)call.cuCtxPopCurrent_v2(&popped);
  CKPT_TRY(asked);
  device.gpu.free_bytes = free;
  return {};
}

Result<std::vector<device::Gpu>> MemoryInfo::gpus() {
  CKPT_TRY(find());
  std::vector<device::Gpu> out;
  for (Device& device : devices_) {
    Nvml::Memory memory{};
    if (device.nvml != nullptr && Nvml::get()->memory_info(device.nvml, &memory) == 0)
      device.gpu.free_bytes = memory.free;
    else CKPT_TRY(ask_context(device));
    out.push_back(device.gpu);
  }
  return out;
}

Result<std::vector<device::GpuShare>> MemoryInfo::of_process(int pid) {
  CKPT_TRY(find());
  const Error not_told(Code::kUnsupported, "process " + std::to_string(pid), "NVML does not tell its device memory");
  constexpr unsigned kSpare = 64;
  std::vector<device::GpuShare> out;
  for (Device& device : devices_) {
    if (device.nvml == nullptr || Nvml::get()->processes == nullptr) return not_told;
    unsigned count = 0;
    (void)Nvml::get()->processes(device.nvml, &count, nullptr);
    std::vector<Nvml::Process> processes(count + kSpare);
    count = static_cast<unsigned>(processes.size());
    if (Nvml::get()->processes(device.nvml, &count, processes.data()) != 0) return not_told;
    processes.resize(std::min<size_t>(count, processes.size()));
    for (const Nvml::Process& process : processes) {
      if (process.pid != static_cast<unsigned>(pid)) continue;
      if (process.used == Nvml::kNotTold) return not_told;
      out.push_back({device.gpu.uuid, device.gpu.name, process.used});
    }
  }
  if (out.empty()) return not_told;
  return out;
}

}  // namespace ckpt::cuda
