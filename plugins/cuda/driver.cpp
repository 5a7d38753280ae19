#include "plugins/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "lib/base/io.h"
#include "lib/base/linkage.h"

namespace ckpt::cuda {

namespace {

const char* library_name() {
  const char* named = std::getenv("CKPT_CUDA_DRIVER");
  return named != nullptr && *named != '\0' ? named : "libcuda.so.1";
}

/// Of the kernel module: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep ..."; empty where there is
/// none.
std::string module_version() {
  auto text = io::read_file("/proc/driver/nvidia/version", 4096);
  if (!text) return "";
  for (size_t at = 0; (at = text->find_first_of("0123456789", at)) != std::string::npos;) {
    const size_t end = text->find_first_not_of("0123456789.", at);
    const std::string word = text->substr(at, end - at);
    if (word.find('.') != std::string::npos) return word;
    at = end;
  }
  return "";
}

Code code_of(api::CUresult result) {
  switch (result) {
    case api::CUDA_ERROR_OUT_OF_MEMORY: return Code::kNoRoom;
    case api::CUDA_ERROR_NOT_READY:
    case api::CUDA_ERROR_TIMEOUT: return Code::kBusy;
    case api::CUDA_ERROR_NOT_SUPPORTED: return Code::kUnsupported;
    case api::CUDA_ERROR_NOT_PERMITTED: return Code::kPermission;
    default: return Code::kIo;
  }
}

template <class Function>
void resolve(void* library, const char* name, Function& out) {
  void* symbol = ::dlsym(library, name);
  static_assert(sizeof out == sizeof symbol);
  std::memcpy(&out, &symbol, sizeof out);
}

}  // namespace

Result<std::shared_ptr<Driver>> Driver::open() {
  static std::mutex mutex;
  static std::shared_ptr<Driver> opened;
  std::lock_guard lock(mutex);
  if (opened) return opened;
  CKPT_TRY(check_loads_libraries("the CUDA driver"));
  void* library = ::dlopen(library_name(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(Code::kUnsupported, "the CUDA driver", std::string("cannot be loaded: ") + ::dlerror());
  std::shared_ptr<Driver> out(new Driver);
#define CKPT_CUDA(name, parameters) resolve(library, #name, out->functions_.name);
#include "plugins/cuda/driver_functions.inc"
  if (out->functions_.cuInit == nullptr || out->functions_.cuDriverGetVersion == nullptr)
    return fail(Code::kUnsupported, library_name(), "is not a CUDA driver");
  CKPT_TRY(
      out->check(out->functions_.cuDriverGetVersion(&out->cuda_version_), library_name(), "does not tell its version"));
  return opened = out;
}

Result<void> Driver::initialise() {
  if (initialised_) return {};
  CKPT_TRY(check(functions_.cuInit(0), "the CUDA driver", "cannot be initialised"));
  initialised_ = true;
  return {};
}

std::string Driver::version() const {
  const std::string module = module_version();
  const std::string cuda = fmt::format("CUDA {}.{}", cuda_version_ / 1000, cuda_version_ % 1000 / 10);
  return module.empty() ? cuda : fmt::format("driver {}, {}", module, cuda);
}

Result<void> Driver::check(api::CUresult result, std::string subject, std::string message) const {
  if (result == api::CUDA_SUCCESS) return {};
  const char *name = nullptr, *text = nullptr;
  if (functions_.cuGetErrorName != nullptr) (void)functions_.cuGetErrorName(result, &name);
  if (functions_.cuGetErrorString != nullptr) (void)functions_.cuGetErrorString(result, &text);
  std::string reason = name != nullptr ? name : fmt::format("error {}", static_cast<int>(result));
  if (text != nullptr) reason += fmt::format(" ({})", text);
  return fail(code_of(result), std::move(subject), message + ": " + reason);
}

}  // namespace ckpt::cuda
