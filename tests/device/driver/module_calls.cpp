// Calls: modules, functions, launches. See standin.h for what a module and a kernel are here.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sstream>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

struct Module {
  Context* context = nullptr;
  std::list<Function> functions;
  std::map<std::string, std::pair<CUdeviceptr, size_t>> globals;
};

namespace {

struct Modules {
  std::list<Module> all;
  std::unordered_set<const void*> functions;
};
Modules& modules() {
  static Modules& one = *new Modules;
  return one;
}

Module* module_of(const void* handle) {
  for (Module& each : modules().all)
    if (&each == handle) return &each;
  return nullptr;
}

constexpr uintptr_t kKernelMark = 1;

bool is_kernel(const void* handle) { return (reinterpret_cast<uintptr_t>(handle) & kKernelMark) != 0; }

CUkernel as_kernel(CUkernel function) {
  return reinterpret_cast<CUkernel>(reinterpret_cast<uintptr_t>(function) | kKernelMark);
}

/// What a call does with a kernel that is documented for functions alone is not known: here it ends the process.
void no_kernel(const char* call, const void* handle) {
  if (!is_kernel(handle)) return;
  ::fprintf(stderr, "stand-in: %s of a kernel\n", call);
  ::abort();
}

void* translate(unsigned long long address) {
  return is_device(address) ? shadow(address) : reinterpret_cast<void*>(address);
}

CUresult add_kernel(Module& module, const std::string& name, const std::string& sizes) {
  Function made;
  made.module = &module;
  made.name = name;
  made.body = reinterpret_cast<StandinKernel>(::dlsym(RTLD_DEFAULT, ("emu_" + name).c_str()));
  if (made.body == nullptr) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  std::istringstream list(sizes);
  for (std::string one; sizes != "-" && std::getline(list, one, ',');) {
    size_t size = std::strtoul(one.c_str(), nullptr, 10), alignment = std::min<size_t>(size, 8);
    if (size == 0 || (alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_IMAGE;
    made.total = (made.total + alignment - 1) / alignment * alignment;
    made.offsets.push_back(made.total);
    made.sizes.push_back(size);
    made.total += size;
  }
  modules().functions.insert(&module.functions.emplace_back(made));
  return CUDA_SUCCESS;
}

CUresult add_global(Module& module, const std::string& name, size_t size) {
  CUdeviceptr address = 0;
  CUresult result = allocate(module.context, size, Kind::kGlobal, nullptr, &address);
  if (result != CUDA_SUCCESS) return result;
  ::memset(shadow(address), 0, size);
  module.globals[name] = {address, size};
  return CUDA_SUCCESS;
}

CUresult parse(Module& module, const char* text) {
  if (text == nullptr) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  std::istringstream lines(text + sizeof kModuleTitle - 1);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what, name, size;
    words >> what >> name >> size;
    CUresult result = what == "kernel"   ? add_kernel(module, name, size)
                      : what == "global" ? add_global(module, name, std::strtoul(size.c_str(), nullptr, 10))
                      : what.empty()     ? CUDA_SUCCESS
                                         : CUDA_ERROR_INVALID_IMAGE;
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void unload(Module* module) {
  for (Function& each : module->functions) modules().functions.erase(&each);
  for (auto& [name, place] : module->globals) release(place.first);
  modules().all.remove_if([&](const Module& each) { return &each == module; });
}

CUresult load(Module** out, const void* image) {
  Context* context = current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard guard(lock());
  Module& made = modules().all.emplace_back();
  made.context = context;
  CUresult result = parse(made, module_text(image));
  if (result != CUDA_SUCCESS)
    unload(&made);
  else
    *out = &made;
  return result;
}

CUresult find_function(const void* handle, const char* name, void* out) {
  std::lock_guard guard(lock());
  Module* module = module_of(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (Function& each : module->functions) {
    if (each.name != name) continue;
    Function* found = &each;
    ::memcpy(out, &found, sizeof(found));
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult parameter(const void* handle, size_t index, size_t* offset, size_t* size) {
  std::lock_guard guard(lock());
  Function* function = function_of(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (index >= function->sizes.size() || offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->offsets[index];
  if (size != nullptr) *size = function->sizes[index];
  return CUDA_SUCCESS;
}

/// One block of the parameters' bytes, whichever way they were passed.
bool copy_parameters(const Function& function, void** params, void** extra, char* out) {
  if (function.sizes.empty()) return true;
  if (params != nullptr) {
    for (size_t i = 0; i < function.sizes.size(); ++i)
      ::memcpy(out + function.offsets[i], params[i], function.sizes[i]);
    return true;
  }
  const void* buffer = nullptr;
  size_t size = 0;
  for (; extra != nullptr && *extra != nullptr; extra += 2) {
    if (extra[0] == kLaunchParamBufferPointer) buffer = extra[1];
    if (extra[0] == kLaunchParamBufferSize) size = *static_cast<size_t*>(extra[1]);
  }
  if (buffer == nullptr || size < function.total) return false;
  ::memcpy(out, buffer, function.total);
  return true;
}

}  // namespace

CUresult module_load(CUmodule* out, const void* image) { return load(reinterpret_cast<Module**>(out), image); }

Function* function_of(const void* given) {
  std::lock_guard guard(lock());
  const void* handle = reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(given) & ~kKernelMark);
  return modules().functions.contains(handle) ? static_cast<Function*>(const_cast<void*>(handle)) : nullptr;
}

Work make_launch(Function* function, const CUDA_KERNEL_NODE_PARAMS& p, std::vector<uint64_t>* touches) {
  if (p.gridDimX == 0 || p.gridDimY == 0 || p.gridDimZ == 0 || p.blockDimX == 0 || p.blockDimY == 0 || p.blockDimZ == 0)
    return {};
  if (uint64_t{p.blockDimX} * p.blockDimY * p.blockDimZ > 1024) return {};
  auto bytes = std::make_shared<std::vector<char>>(function->total + 1);
  if (!copy_parameters(*function, p.kernelParams, p.extra, bytes->data())) return {};
  for (size_t at = 0; touches != nullptr && at + 8 <= function->total; at += 8) {
    uint64_t word;
    ::memcpy(&word, bytes->data() + at, 8);
    if (is_device(word)) touches->push_back(word);
  }
  StandinLaunch launch{{p.gridDimX, p.gridDimY, p.gridDimZ},
                       {p.blockDimX, p.blockDimY, p.blockDimZ},
                       p.sharedMemBytes,
                       nullptr,
                       translate};
  return [launch, bytes, body = function->body, offsets = function->offsets]() mutable {
    std::vector<void*> params;
    for (size_t offset : offsets) params.push_back(bytes->data() + offset);
    launch.params = params.data();
    body(&launch);
  };
}

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  CKPT_STANDIN_ENTER();
  return load(reinterpret_cast<Module**>(module), image);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  CKPT_STANDIN_ENTER();
  return load(reinterpret_cast<Module**>(module), image);
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  CKPT_STANDIN_ENTER();
  return module_load(module, image);
}

CUresult cuModuleUnload(CUmodule handle) {
  CKPT_STANDIN_ENTER();
  Context* context;
  {
    std::lock_guard guard(lock());
    Module* module = module_of(handle);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    context = module->context;
  }
  wait_for_all(context);  // without the lock: what is waited for may need it
  std::lock_guard guard(lock());
  unload(module_of(handle));
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
  CKPT_STANDIN_ENTER();
  return find_function(module, name, out);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule handle, const char* name) {
  CKPT_STANDIN_ENTER();
  std::lock_guard guard(lock());
  Module* module = module_of(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto found = module->globals.find(name);
  if (found == module->globals.end()) return CUDA_ERROR_NOT_FOUND;
  if (dptr != nullptr) *dptr = found->second.first;
  if (bytes != nullptr) *bytes = found->second.second;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  CKPT_STANDIN_ENTER();
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

// A library is a module, a kernel is a function with a mark.

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
  CKPT_STANDIN_ENTER();
  return load(reinterpret_cast<Module**>(library), code);
}

CUresult cuLibraryUnload(CUlibrary library) { return cuModuleUnload(reinterpret_cast<CUmodule>(library)); }

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  CKPT_STANDIN_ENTER();
  const CUresult result = find_function(library, name, kernel);
  if (result == CUDA_SUCCESS) *kernel = as_kernel(*kernel);
  return result;
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  CKPT_STANDIN_ENTER();
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  CKPT_STANDIN_ENTER();
  if (!is_kernel(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  *function = reinterpret_cast<CUfunction>(function_of(kernel));
  return *function == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  CKPT_STANDIN_ENTER();
  return is_kernel(kernel) ? parameter(kernel, index, offset, size) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  no_kernel(__func__, function);
  CKPT_STANDIN_ENTER();
  return parameter(function, index, offset, size);
}

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attribute, CUfunction handle) {
  CKPT_STANDIN_ENTER();
  if (function_of(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pi = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute, int) {
  CKPT_STANDIN_ENTER();
  return function_of(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  CKPT_STANDIN_ENTER();
  Function* function = function_of(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *module = reinterpret_cast<CUmodule>(function->module);
  return CUDA_SUCCESS;
}

CKPT_STANDIN_API CUresult cuKernelGetName(const char** name, CUkernel handle) {
  CKPT_STANDIN_ENTER();
  Function* function = is_kernel(handle) ? function_of(handle) : nullptr;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction handle) {
  no_kernel(__func__, handle);
  CKPT_STANDIN_ENTER();
  Function* function = function_of(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int block_size, size_t) {
  CKPT_STANDIN_ENTER();
  if (function_of(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (blocks == nullptr || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = std::max(1, 2048 / block_size);
  return CUDA_SUCCESS;
}

// --- Launches

namespace {

CUresult launch(const CUDA_KERNEL_NODE_PARAMS& params, CUstream handle) {
  auto stream = stream_of(handle);
  if (stream == nullptr) return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  Function* function = function_of(params.func);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<uint64_t> touches;
  Work work = make_launch(function, params, &touches);
  if (!work) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<CUDA_KERNEL_NODE_PARAMS> kept;
  if (stream->capture != nullptr) kept = std::make_shared<CUDA_KERNEL_NODE_PARAMS>(params);
  return submit(stream, CU_GRAPH_NODE_TYPE_KERNEL, std::move(work), std::move(touches), std::move(kept));
}

}  // namespace

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void** params, void** extra) {
  CKPT_STANDIN_ENTER();
  return launch({f, gx, gy, gz, bx, by, bz, shared, params, extra, nullptr, nullptr}, stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  CKPT_STANDIN_ENTER();
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS all{
      f,      c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes,
      params, extra,       nullptr,     nullptr};
  return launch(all, c->hStream);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void** params) {
  CKPT_STANDIN_ENTER();
  return launch({f, gx, gy, gz, bx, by, bz, shared, params, nullptr, nullptr, nullptr}, stream);
}

}  // namespace ckpt::cuda::api
