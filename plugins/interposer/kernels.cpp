#include "plugins/interposer/kernels.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "plugins/interposer/api_lock.h"

namespace ckpt::interposer {

namespace {

struct State {
  std::mutex mutex;
  std::map<CUkernel, CUlibrary> kernels;
};
alignas(State) unsigned char g_place[sizeof(State)];
State& state() {
  static State* made = new (g_place) State;
  return *made;
}

void kernel_found(CUkernel kernel, CUlibrary library) {
  std::lock_guard lock(state().mutex);
  state().kernels[kernel] = library;
}

/// Before a library ends, since as soon as it has others may get its kernels' addresses.
std::vector<CUkernel> take_kernels(CUlibrary library) {
  std::vector<CUkernel> taken;
  std::lock_guard lock(state().mutex);
  for (const auto& [kernel, of] : state().kernels)
    if (of == library) taken.push_back(kernel);
  for (CUkernel kernel : taken) state().kernels.erase(kernel);
  return taken;
}

constexpr size_t kEnumerateKernels = index_of("cuLibraryEnumerateKernels");

}  // namespace

bool is_kernel(CUfunction handle) {
  std::lock_guard lock(state().mutex);
  return state().kernels.count(reinterpret_cast<CUkernel>(handle)) != 0;
}

CUresult library_get_kernel(CUkernel* out, CUlibrary library, const char* name) {
  const CUresult result = drv::cuLibraryGetKernel(out, library, name);
  if (result == CUDA_SUCCESS) kernel_found(*out, library);
  return result;
}

CUresult library_enumerate_kernels(CUkernel* out, unsigned count, CUlibrary library) {
  if (out != nullptr) std::fill_n(out, count, nullptr);  // it may have fewer
  const CUresult result = real<kEnumerateKernels>(out, count, library);
  if (result != CUDA_SUCCESS || out == nullptr) return result;
  for (unsigned i = 0; i < count; ++i)
    if (out[i] != nullptr) kernel_found(out[i], library);
  return result;
}

CUresult library_unload(CUlibrary library) {
  Passage passage;
  const std::vector<CUkernel> taken = take_kernels(library);
  const CUresult result = drv::cuLibraryUnload(library);
  if (result != CUDA_SUCCESS)
    for (CUkernel kernel : taken) kernel_found(kernel, library);
  return result;
}

void reset_kernels_after_fork() {
  state();
  new (g_place) State;
}

}  // namespace ckpt::interposer
