// The stand-in's calls, from inside: what programs may rely on, and where they are told that they err.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "plugins/cuda/driver_api.h"
#include "tests/device/driver/standin.h"

namespace {

using namespace ckpt::cuda::api;

struct Table {
#define CKPT_CUDA(name, parameters) CUresult(*name) parameters;
#include "plugins/cuda/driver_functions.inc"
};

void* library() {
  static void* handle = ::dlopen(STANDIN_DRIVER, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(handle != nullptr);
  return handle;
}

const Table& cu() {
  static const Table table = [] {
    ::setenv("CKPT_STANDIN_CAPACITY", "33554432", 1);
    ::setenv("CKPT_STANDIN_SEED", "5", 1);
    ::setenv("CKPT_STANDIN_FAULT", "cuMemsetD16_v2:2:2,cuEventQuery:1:999", 1);
    Table made;
#define CKPT_CUDA(name, parameters) made.name = reinterpret_cast<CUresult(*) parameters>(::dlsym(library(), #name));
#include "plugins/cuda/driver_functions.inc"
    return made;
  }();
  return table;
}

CUcontext context() {
  static const CUcontext made = [] {
    CUcontext out;
    REQUIRE(cu().cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cu().cuDevicePrimaryCtxRetain(&out, 0) == CUDA_SUCCESS);
    return out;
  }();
  REQUIRE(cu().cuCtxSetCurrent(made) == CUDA_SUCCESS);
  return made;
}

CUdeviceptr allocate(size_t size) {
  CUdeviceptr out = 0;
  REQUIRE(cu().cuMemAlloc_v2(&out, size) == CUDA_SUCCESS);
  return out;
}

CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream out = nullptr;
  REQUIRE(cu().cuStreamCreate(&out, flags) == CUDA_SUCCESS);
  return out;
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  REQUIRE(cu().cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS);
  return free;
}

std::atomic<int> gate{0};
void wait_for_gate(void*) {
  while (gate == 0) ::usleep(100);
}

int exit_of_child(const std::function<void()>& body) {
  pid_t child = ::fork();
  if (child == 0) {
    for (int number : {SIGSEGV, SIGABRT}) ::signal(number, SIG_DFL);  // not the test library's business
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void emu_double(const StandinLaunch* launch) {
  CUdeviceptr at;
  uint32_t count;
  std::memcpy(&at, launch->params[0], 8);
  std::memcpy(&count, launch->params[1], 4);
  auto* words = static_cast<uint32_t*>(launch->translate(at));
  for (uint32_t i = 0; i < count; ++i) words[i] *= 2;
}

TEST_CASE("before cuInit nothing is initialised") {
  int count = 0;
  CHECK(cu().cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
  context();
  CHECK(cu().cuDeviceGetCount(&count) == CUDA_SUCCESS);
  CHECK(count == 1);
}

TEST_CASE("a forked child cannot use the driver, and one that starts it itself can") {
  context();
  CHECK(exit_of_child([] {
          int count = 0;
          ::_exit(cu().cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                          cu().cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED
                      ? 7
                      : 1);
        }) == 7);
}

TEST_CASE("names: by version, by kind of stream, and of what is not there") {
  context();
  void* found = nullptr;
  CUdriverProcAddressQueryResult status;
  auto look = [&](const char* name, int version, uint64_t flags) {
    return cu().cuGetProcAddress_v2(name, &found, version, flags, &status);
  };
  REQUIRE(look("cuMemAlloc", 13000, 0) == CUDA_SUCCESS);
  CHECK(found == ::dlsym(library(), "cuMemAlloc_v2"));
  REQUIRE(look("cuMemcpyHtoDAsync", 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == CUDA_SUCCESS);
  CHECK(found != ::dlsym(library(), "cuMemcpyHtoDAsync_v2"));
  CHECK(::dlsym(library(), "cuMemcpyHtoDAsync_v2_ptsz") != nullptr);
  CHECK(::dlsym(library(), "cuMemcpyHtoD_v2_ptds") != nullptr);
  CHECK(::dlsym(library(), "cuLaunchKernel_ptsz") != nullptr);
  REQUIRE(look("cuCtxCreate", 12000, 0) == CUDA_SUCCESS);
  CHECK(found == ::dlsym(library(), "cuCtxCreate_v2"));
  REQUIRE(look("cuCtxCreate", 13000, 0) == CUDA_SUCCESS);
  CHECK(found == ::dlsym(library(), "cuCtxCreate_v4"));
  CHECK(look("cuCheckpointProcessLock", 12040, 0) == CUDA_ERROR_NOT_FOUND);
  CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK(look("cuNoSuchThing", 13000, 0) == CUDA_ERROR_NOT_FOUND);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  REQUIRE(look("cuGetProcAddress", 11080, 0) == CUDA_SUCCESS);
  CHECK(found == ::dlsym(library(), "cuGetProcAddress"));
}

TEST_CASE("what a driver exports and the stand-in lacks is there, and says what it is where it is called") {
  context();
  for (const char* name : {"cuGLInit", "cuTexRefCreate", "cuMemcpy3DPeer_ptds", "cuVDPAUGetDevice"}) {
    CAPTURE(name);
    auto* function = reinterpret_cast<CUresult (*)()>(::dlsym(library(), name));
    REQUIRE((function != nullptr));
    CHECK(exit_of_child([=] { (void)function(); }) == -SIGABRT);
  }
  void* found = nullptr;
  REQUIRE(cu().cuGetProcAddress_v2("cuMemcpy3DPeer", &found, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                                   nullptr) == CUDA_SUCCESS);
  CHECK(found == ::dlsym(library(), "cuMemcpy3DPeer_ptds"));
}

namespace {

struct Kept {
  CUcontext context;
  const void* key;
  void* value;
};
Kept ended;

void* const* export_table(const char (&id)[17]) {
  CUuuid uuid;
  std::memcpy(uuid.bytes, id, 16);
  const void* table = nullptr;
  return cu().cuGetExportTable(&table, &uuid) == CUDA_SUCCESS ? static_cast<void* const*>(table) : nullptr;
}

}  // namespace

TEST_CASE("export tables: a library keeps values with a context, and is told of its end") {
  context();
  CHECK(export_table("no table of ours") == nullptr);
  void* const* storage = export_table("\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93");
  REQUIRE(storage != nullptr);
  auto* put = reinterpret_cast<CUresult (*)(CUcontext, const void*, void*, void (*)(CUcontext, const void*, void*))>(
      storage[0]);
  auto* remove = reinterpret_cast<CUresult (*)(CUcontext, const void*)>(storage[1]);
  auto* get = reinterpret_cast<CUresult (*)(void**, CUcontext, const void*)>(storage[2]);
  CUcontext made = nullptr;
  REQUIRE(cu().cuCtxCreate_v2(&made, 0, 0) == CUDA_SUCCESS);
  int first = 0, second = 0, value = 0;
  void* found = nullptr;
  CHECK(get(&found, made, &first) == CUDA_ERROR_INVALID_HANDLE);
  auto told = [](CUcontext context, const void* key, void* kept) { ended = {context, key, kept}; };
  REQUIRE(put(made, &first, &value, told) == CUDA_SUCCESS);
  REQUIRE(put(nullptr, &second, &value, told) == CUDA_SUCCESS);  // the current one
  REQUIRE(get(&found, made, &second) == CUDA_SUCCESS);
  CHECK(found == &value);
  CHECK(remove(made, &second) == CUDA_SUCCESS);
  CHECK(remove(made, &second) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cu().cuCtxDestroy_v2(made) == CUDA_SUCCESS);
  CHECK(ended.context == made);
  CHECK(ended.key == &first);
  CHECK(ended.value == &value);
}

TEST_CASE("a module within a fat binary: its entry is found, and nothing past its end is read") {
  context();
  struct {
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1, header_bytes = 16;
    uint64_t bytes = 0;
    unsigned char entries[160] = {};
  } fat;
  auto add = [&](uint64_t payload, const char* text) {
    const uint16_t kinds[] = {1, 0x101};
    const uint32_t header_bytes = 64;
    unsigned char* at = fat.entries + fat.bytes;
    std::memcpy(at, kinds, 4), std::memcpy(at + 4, &header_bytes, 4), std::memcpy(at + 8, &payload, 8);
    std::memcpy(at + 64, text, std::strlen(text));
    fat.bytes += 64 + std::strlen(text) + 1;
  };
  CUmodule module = nullptr;
  add(8, "another");
  CHECK(cu().cuModuleLoadData(&module, &fat) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  add(10, "CKPTEMU1\n");
  CHECK(cu().cuModuleLoadData(&module, &fat) == CUDA_SUCCESS);
  const struct {
    uint32_t magic = 0x466243b1, version = 1;
    const void *data, *rest = nullptr;
  } wrapper{.data = &fat};
  CHECK(cu().cuModuleLoadFatBinary(&module, &wrapper) == CUDA_SUCCESS);
  fat.bytes -= 1;  // cut in its last entry
  CHECK(cu().cuModuleLoadData(&module, &fat) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  fat.bytes = 7;
  CHECK(cu().cuModuleLoadData(&module, &fat) == CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_CASE("host code that touches a device address faults; copies through the driver do not") {
  context();
  CUdeviceptr at = allocate(4096);
  CHECK(exit_of_child([&] { *reinterpret_cast<volatile char*>(at) = 1; }) == -SIGSEGV);
  unsigned word = 0;
  CHECK(cu().cuMemsetD32_v2(at, 0x01020304, 1024) == CUDA_SUCCESS);
  CHECK(cu().cuMemcpyDtoH_v2(&word, at + 4092, 4) == CUDA_SUCCESS);
  CHECK(word == 0x01020304);
  CHECK(cu().cuMemFree_v2(at) == CUDA_SUCCESS);
  CHECK(cu().cuMemFree_v2(at) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("out of bounds: a copy past the end of what is mapped is an invalid value") {
  context();
  CUdeviceptr at = allocate(4 << 20);
  std::vector<char> host(8 << 20);
  CHECK(cu().cuMemcpyHtoD_v2(at, host.data(), 4 << 20) == CUDA_SUCCESS);
  CHECK(cu().cuMemcpyHtoD_v2(at + (3 << 20), host.data(), (1 << 20) + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu().cuMemcpyDtoH_v2(host.data(), reinterpret_cast<CUdeviceptr>(host.data()), 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu().cuMemFree_v2(at) == CUDA_SUCCESS);
}

TEST_CASE("capacity is finite and comes back; small allocations share a granule") {
  context();
  const size_t before = free_bytes();
  CUdeviceptr at = 0;
  CHECK(cu().cuMemAlloc_v2(&at, before + 1) == CUDA_ERROR_OUT_OF_MEMORY);
  std::vector<CUdeviceptr> small;
  for (int i = 0; i < 100; ++i) small.push_back(allocate(1000));
  CHECK(before - free_bytes() == 2 << 20);
  CUdeviceptr base = 0;
  size_t size = 0;
  CHECK(cu().cuMemGetAddressRange_v2(&base, &size, small[50] + 999) == CUDA_SUCCESS);
  CHECK(base == small[50]);
  CHECK(size == 1000);
  for (CUdeviceptr each : small) CHECK(cu().cuMemFree_v2(each) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
}

TEST_CASE("a stream is in order, and says not ready until it is done") {
  context();
  CUstream one = stream();
  CUdeviceptr at = allocate(4096);
  gate = 0;
  REQUIRE(cu().cuLaunchHostFunc(one, wait_for_gate, nullptr) == CUDA_SUCCESS);
  for (unsigned i = 1; i <= 50; ++i) REQUIRE(cu().cuMemsetD32Async(at, i, 1024, one) == CUDA_SUCCESS);
  CHECK(cu().cuStreamQuery(one) == CUDA_ERROR_NOT_READY);
  gate = 1;
  CHECK(cu().cuStreamSynchronize(one) == CUDA_SUCCESS);
  unsigned word = 0;
  CHECK(cu().cuMemcpyDtoH_v2(&word, at, 4) == CUDA_SUCCESS);
  CHECK(word == 50);
  CHECK(cu().cuStreamDestroy_v2(one) == CUDA_SUCCESS);
  CHECK(cu().cuStreamSynchronize(one) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cu().cuMemFree_v2(at) == CUDA_SUCCESS);
}

TEST_CASE("the standard stream waits for blocking streams, and not for the others") {
  context();
  CUstream blocking = stream(CU_STREAM_DEFAULT), apart = stream();
  CUdeviceptr at = allocate(8);
  gate = 0;
  REQUIRE(cu().cuLaunchHostFunc(apart, wait_for_gate, nullptr) == CUDA_SUCCESS);
  CHECK(cu().cuMemsetD32_v2(at, 1, 1) == CUDA_SUCCESS);  // does not hang
  REQUIRE(cu().cuLaunchHostFunc(blocking, wait_for_gate, nullptr) == CUDA_SUCCESS);
  REQUIRE(cu().cuMemsetD32Async(at, 2, 1, nullptr) == CUDA_SUCCESS);
  CHECK(cu().cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
  gate = 1;
  CHECK(cu().cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cu().cuMemFree_v2(at) == CUDA_SUCCESS);
  CHECK(cu().cuStreamDestroy_v2(blocking) == CUDA_SUCCESS);
  CHECK(cu().cuStreamDestroy_v2(apart) == CUDA_SUCCESS);
}

TEST_CASE("memory is not unmapped under work that uses it") {
  context();
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const size_t size = 2 << 20, before = free_bytes();
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cu().cuMemAddressReserve(&at, size, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cu().cuMemCreate(&handle, size, &prop, 0) == CUDA_SUCCESS);
  CHECK(cu().cuMemCreate(&handle, size + 1, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cu().cuMemMap(at, size, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cu().cuMemMap(at, size, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu().cuMemsetD8_v2(at, 1, size) == CUDA_ERROR_INVALID_VALUE);  // no access yet
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE(cu().cuMemSetAccess(at, size, &access, 1) == CUDA_SUCCESS);
  CUstream one = stream();
  gate = 0;
  REQUIRE(cu().cuLaunchHostFunc(one, wait_for_gate, nullptr) == CUDA_SUCCESS);
  REQUIRE(cu().cuMemsetD8Async(at, 1, size, one) == CUDA_SUCCESS);
  CHECK(cu().cuMemUnmap(at, size) == CUDA_ERROR_UNMAP_FAILED);
  gate = 1;
  REQUIRE(cu().cuStreamSynchronize(one) == CUDA_SUCCESS);
  CHECK(cu().cuMemAddressFree(at, size) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cu().cuMemUnmap(at, size) == CUDA_SUCCESS);
  CHECK(before - free_bytes() == size);  // the handle holds it
  int fd = -1;
  REQUIRE(cu().cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  CUmemGenericAllocationHandle import = 0;
  void* given = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
  REQUIRE(cu().cuMemImportFromShareableHandle(&import, given, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
          CUDA_SUCCESS);
  ::close(fd);
  CHECK(cu().cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(before - free_bytes() == size);  // the import does, too: once
  CHECK(cu().cuMemRelease(import) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  CHECK(cu().cuMemAddressFree(at, size) == CUDA_SUCCESS);
  CHECK(cu().cuStreamDestroy_v2(one) == CUDA_SUCCESS);
}

TEST_CASE("kernels: parameters are copied at the launch, and known by place and size") {
  context();
  CUmodule module;
  CUfunction twice;
  CHECK(cu().cuModuleLoadData(&module, "no image") == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(cu().cuModuleLoadData(&module, "CKPTEMU1\nkernel nobody_wrote 8\n") == CUDA_ERROR_NO_BINARY_FOR_GPU);
  REQUIRE(cu().cuModuleLoadData(&module, "CKPTEMU1\nkernel double 8,4\nglobal v 64\n") == CUDA_SUCCESS);
  REQUIRE(cu().cuModuleGetFunction(&twice, module, "double") == CUDA_SUCCESS);
  CHECK(cu().cuModuleGetFunction(&twice, module, "triple") == CUDA_ERROR_NOT_FOUND);
  size_t offset = 0, size = 0;
  CHECK(cu().cuFuncGetParamInfo(twice, 1, &offset, &size) == CUDA_SUCCESS);
  CHECK(offset == 8);
  CHECK(size == 4);
  CHECK(cu().cuFuncGetParamInfo(twice, 2, &offset, &size) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr at = 0;
  REQUIRE(cu().cuModuleGetGlobal_v2(&at, &size, module, "v") == CUDA_SUCCESS);
  REQUIRE(cu().cuMemsetD32_v2(at, 21, 16) == CUDA_SUCCESS);
  CUstream one = stream();
  gate = 0;
  REQUIRE(cu().cuLaunchHostFunc(one, wait_for_gate, nullptr) == CUDA_SUCCESS);
  {
    CUdeviceptr passing = at;
    uint32_t count = 16;
    void* params[] = {&passing, &count};
    CHECK(cu().cuLaunchKernel(twice, 1, 1, 1, 2048, 1, 1, 0, one, params, nullptr) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cu().cuLaunchKernel(twice, 1, 1, 1, 32, 1, 1, 0, one, params, nullptr) == CUDA_SUCCESS);
    passing = 0, count = 0;
  }
  gate = 1;
  unsigned word = 0;
  REQUIRE(cu().cuStreamSynchronize(one) == CUDA_SUCCESS);
  REQUIRE(cu().cuMemcpyDtoH_v2(&word, at + 60, 4) == CUDA_SUCCESS);
  CHECK(word == 42);
  CHECK(cu().cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cu().cuStreamDestroy_v2(one) == CUDA_SUCCESS);
}

TEST_CASE("a library's kernel is launched like a function, and asked about as a kernel") {
  context();
  CUlibrary whole;
  CUkernel kernel;
  CUfunction function;
  REQUIRE(cu().cuLibraryLoadData(&whole, "CKPTEMU1\nkernel double 8,4\n", nullptr, nullptr, 0, nullptr, nullptr, 0) ==
          CUDA_SUCCESS);
  REQUIRE(cu().cuLibraryGetKernel(&kernel, whole, "double") == CUDA_SUCCESS);
  REQUIRE(cu().cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS);
  size_t offset = 0, size = 0;
  CHECK(cu().cuKernelGetParamInfo(kernel, 1, &offset, &size) == CUDA_SUCCESS);
  CHECK(cu().cuFuncGetParamInfo(function, 1, &offset, &size) == CUDA_SUCCESS);
  const auto as_function = reinterpret_cast<CUfunction>(kernel);
  CHECK(exit_of_child([=] {
          size_t nothing;
          (void)cu().cuFuncGetParamInfo(as_function, 0, &nothing, &nothing);
        }) == -SIGABRT);
  CUdeviceptr at = allocate(64);
  uint32_t count = 16;
  void* params[] = {&at, &count};
  CHECK(cu().cuLaunchKernel(as_function, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr) == CUDA_SUCCESS);
  CHECK(cu().cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cu().cuLibraryUnload(whole) == CUDA_SUCCESS);
  CHECK(cu().cuMemFree_v2(at) == CUDA_SUCCESS);
}

TEST_CASE("capture: what may not be called spoils it, and says so") {
  context();
  CUstream one = stream();
  CUgraph graph = nullptr;
  CUdeviceptr at = allocate(64);
  REQUIRE(cu().cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cu().cuMemsetD32Async(at, 1, 4, one) == CUDA_SUCCESS);
  CHECK(cu().cuStreamSynchronize(one) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cu().cuStreamEndCapture(one, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  REQUIRE(cu().cuStreamBeginCapture_v2(one, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CUdeviceptr more;
  CHECK(cu().cuMemAlloc_v2(&more, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cu().cuStreamEndCapture(one, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cu().cuMemFree_v2(at) == CUDA_SUCCESS);
  CHECK(cu().cuStreamDestroy_v2(one) == CUDA_SUCCESS);
}

TEST_CASE("pageable memory is read before an asynchronous copy returns") {
  context();
  CUstream one = stream();
  CUdeviceptr at = allocate(1 << 20);
  gate = 0;
  REQUIRE(cu().cuLaunchHostFunc(one, wait_for_gate, nullptr) == CUDA_SUCCESS);
  std::vector<char> host(1 << 20, 'a');
  REQUIRE(cu().cuMemcpyHtoDAsync_v2(at, host.data(), host.size(), one) == CUDA_SUCCESS);
  std::fill(host.begin(), host.end(), 'b');
  gate = 1;
  REQUIRE(cu().cuStreamSynchronize(one) == CUDA_SUCCESS);
  REQUIRE(cu().cuMemcpyDtoH_v2(host.data(), at, host.size()) == CUDA_SUCCESS);
  CHECK(host[777] == 'a');
  CHECK(cu().cuMemFree_v2(at) == CUDA_SUCCESS);
  CHECK(cu().cuStreamDestroy_v2(one) == CUDA_SUCCESS);
}

TEST_CASE("faults come at the call that was named, once") {
  context();
  CUdeviceptr at = allocate(64);
  CHECK(cu().cuMemsetD16_v2(at, 1, 4) == CUDA_SUCCESS);
  CHECK(cu().cuMemsetD16_v2(at, 1, 4) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cu().cuMemsetD16_v2(at, 1, 4) == CUDA_SUCCESS);
  CUevent event;
  REQUIRE(cu().cuEventCreate(&event, 0) == CUDA_SUCCESS);
  CHECK(cu().cuEventQuery(event) == CUDA_ERROR_UNKNOWN);
  CHECK(cu().cuEventQuery(event) == CUDA_SUCCESS);
  CHECK(cu().cuMemFree_v2(at) == CUDA_SUCCESS);
}

TEST_CASE("two contexts: each its own streams, and memory ends with its context") {
  context();
  const size_t before = free_bytes();
  CUcontext other;
  REQUIRE(cu().cuCtxCreate_v4(&other, nullptr, 0, 0) == CUDA_SUCCESS);
  allocate(4 << 20);
  stream();
  CUcontext now = nullptr;
  CHECK(cu().cuCtxGetCurrent(&now) == CUDA_SUCCESS);
  CHECK(now == other);
  CHECK(before - free_bytes() == 4 << 20);
  REQUIRE(cu().cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  CHECK(cu().cuCtxGetCurrent(&now) == CUDA_SUCCESS);
  CHECK(now == context());
  CHECK(free_bytes() == before);
}
