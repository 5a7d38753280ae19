#include "tests/device/programs/program.h"

#include <malloc.h>

DriverTable cu;

// PTX of kernels.cu, empty where there was no nvcc.
extern const char kKernelsPtx[];

static const char kStandinModule[] =
    "CKPTEMU1\n"
    "kernel fill 8,8,8\n"
    "kernel verify 8,8,8,8\n"
    "kernel begin 8,8,8\n"
    "kernel train 8,8,8,4\n"
    "kernel loss 8,8,8\n"
    "kernel add 8,8\n"
    "kernel scatter 8,8,8\n"
    "kernel spin 8\n"
    "global g_words 4096\n";

namespace {

template <class T>
T value(const StandinLaunch* launch, int index) {
  T out;
  memcpy(&out, launch->params[index], sizeof out);
  return out;
}

template <class T>
T* pointer(const StandinLaunch* launch, int index) {
  return static_cast<T*>(launch->translate(value<unsigned long long>(launch, index)));
}

}  // namespace

extern "C" {
#define KERNEL(name) __attribute__((visibility("default"))) void emu_##name(const StandinLaunch* l)

KERNEL(fill) {
  auto* out = pointer<uint64_t>(l, 0);
  for (uint64_t i = 0, count = value<uint64_t>(l, 1), seed = value<uint64_t>(l, 2); i < count; ++i)
    out[i] = word_of(seed, i);
}
KERNEL(verify) {
  auto *in = pointer<uint64_t>(l, 0), *wrong = pointer<uint64_t>(l, 3);
  for (uint64_t i = 0, count = value<uint64_t>(l, 1), seed = value<uint64_t>(l, 2); i < count; ++i)
    *wrong += in[i] != word_of(seed, i);
}
KERNEL(begin) {
  auto *weights = pointer<float>(l, 0), *momenta = pointer<float>(l, 1);
  for (uint64_t i = 0, count = value<uint64_t>(l, 2); i < count; ++i) weights[i] = weight_of(i), momenta[i] = 0;
}
KERNEL(train) {
  auto *weights = pointer<float>(l, 0), *momenta = pointer<float>(l, 1);
  auto step = value<uint32_t>(l, 3);
  for (uint64_t i = 0, count = value<uint64_t>(l, 2); i < count; ++i) train_element(&weights[i], &momenta[i], i, step);
}
KERNEL(loss) {
  auto* weights = pointer<float>(l, 0);
  float sum = 0;
  for (uint64_t i = 0, count = value<uint64_t>(l, 1); i < count; i += 61) sum = sum + weights[i] * weights[i];
  *pointer<float>(l, 2) = sum;
}
KERNEL(add) { *pointer<uint64_t>(l, 0) += value<uint64_t>(l, 1); }
KERNEL(scatter) {
  auto* table = pointer<unsigned long long>(l, 0);
  for (uint64_t i = 0, entries = value<uint64_t>(l, 1), seed = value<uint64_t>(l, 2); i < entries; ++i)
    *static_cast<uint64_t*>(l->translate(table[i])) = word_of(seed, i);
}
KERNEL(spin) {
  auto* stop = pointer<volatile uint32_t>(l, 0);
  while (*stop == 0) usleep(1000);
}
}

void driver_load() {
  mallopt(M_ARENA_MAX, 1);  // or new threads map memory at moments of their own, and the tests compare mappings
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) target_skip("no libcuda.so.1: %s", dlerror());
#define CKPT_CUDA(name, parameters) cu.name = reinterpret_cast<CUresult(*) parameters>(dlsym(library, #name));
#include "plugins/cuda/driver_functions.inc"
}

CUcontext driver_start(int ordinal) {
  if (cu.cuInit == nullptr) driver_load();
  CU_OR_SKIP(cuInit(0));
  CUdevice device;
  CU_OR_SKIP(cuDeviceGet(&device, ordinal));
  CUcontext context;
  CU(cuDevicePrimaryCtxRetain(&context, device));
  CU(cuCtxSetCurrent(context));
  return context;
}

CUmodule kernels_load() {
  CUmodule module;
  if (cu.cuModuleLoadData(&module, kStandinModule) == CUDA_SUCCESS) return module;
  if (kKernelsPtx[0] == 0) target_skip("built without nvcc: no kernels for a real GPU");
  CU(cuModuleLoadData(&module, kKernelsPtx));
  return module;
}

CUfunction kernel(CUmodule module, const char* name) {
  CUfunction function;
  CU(cuModuleGetFunction(&function, module, name));
  return function;
}

CUlibrary library_load() {
  CUlibrary library;
  auto load = [&](const char* image) {
    return cu.cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  };
  if (load(kStandinModule) == CUDA_SUCCESS) return library;
  const CUresult result = load(kKernelsPtx);
  if (result != CUDA_SUCCESS) target_fail("cuLibraryLoadData: %d", (int)result);
  return library;
}

CUfunction library_kernel(CUlibrary library, const char* name) {
  CUkernel found;
  CU(cuLibraryGetKernel(&found, library, name));
  return reinterpret_cast<CUfunction>(found);
}

void launch(CUfunction function, CUstream stream, std::vector<void*> params, unsigned blocks, unsigned threads) {
  CU(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, params.data(), nullptr));
}

Words::Words(CUmodule module) : fill(kernel(module, "fill")), verify(kernel(module, "verify")) {
  CU(cuMemAlloc_v2(&wrong, 8));
}

void Words::write(CUdeviceptr at, size_t bytes, uint64_t seed, CUstream stream) const {
  uint64_t count = bytes / 8;
  launch(fill, stream, {&at, &count, &seed});
}

void Words::check(CUdeviceptr at, size_t bytes, uint64_t seed) const {
  uint64_t count = bytes / 8, found = 1;
  CUdeviceptr out = wrong;
  CU(cuMemsetD8_v2(wrong, 0, 8));
  launch(verify, nullptr, {&at, &count, &seed, &out});
  CU(cuMemcpyDtoH_v2(&found, wrong, 8));
  if (found == 0) return;
  target_fail("%llu words at %#llx (%zu bytes, seed %llu) are wrong", (unsigned long long)found, at, bytes,
              (unsigned long long)seed);
}
