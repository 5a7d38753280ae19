#include "plugins/cuda/memory_info.h"

#include <dlfcn.h>

#include <cstdlib>

#include "plugins/cuda/uuid.h"

namespace ckpt::cuda {

namespace {

/// The part of NVML (nvml.h, r580) that is asked; it always speaks of the driver that runs.
struct Nvml {
  struct Memory {
    unsigned long long total, free, used;
  };
  int (*init)() = nullptr;
  int (*handle_by_uuid)(const char*, void**) = nullptr;
  int (*memory_info)(void*, Memory*) = nullptr;

  /// Null where it cannot be used. A driver that was named by hand is not NVML's.
  static const Nvml* get() {
    static const Nvml nvml = load();
    return nvml.init != nullptr ? &nvml : nullptr;
  }

 private:
  static Nvml load() {
    Nvml out;
    void* library =
        std::getenv("CKPT_CUDA_DRIVER") != nullptr ? nullptr : ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return out;
    out.init = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
    out.handle_by_uuid = reinterpret_cast<int (*)(const char*, void**)>(::dlsym(library, "nvmlDeviceGetHandleByUUID"));
    out.memory_info = reinterpret_cast<int (*)(void*, Memory*)>(::dlsym(library, "nvmlDeviceGetMemoryInfo"));
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

}  // namespace ckpt::cuda
