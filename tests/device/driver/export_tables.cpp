// Tables of functions that the driver exports by UUID to libraries of the same vendor. Their layouts are not
// documented; these are what is publicly known of those that the CUDA runtime asks for at its start, and what a
// runtime was seen to call. A table that is not here is not found, and a function that is not here says so.
//
// The table by which runtimes since CUDA 11.2 establish the validity of the driver is not here, and does not belong
// here: this is not NVIDIA's driver, and says nothing that would have it taken for that. Such runtimes refuse it.
#include <stdio.h>
#include <string.h>

#include <array>

#include "tests/device/driver/state.h"

namespace ckpt::standin {

namespace {

enum Table { kRuntime, kCallbackHooks, kToolsStorage, kContextStorage, kTables };
constexpr unsigned char kIds[kTables][16] = {
    {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9},
    {0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66},
    {0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc},
    {0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93},
};
constexpr const char* kNames[kTables] = {"runtime", "callback hooks", "tools' storage", "context storage"};
constexpr size_t kSlots = 16;
using Slots = std::array<void*, kSlots>;

template <int Table, size_t Slot>
CUresult not_there() {
  ::fprintf(stderr, "stand-in: function %zu of the %s table is not there\n", Slot, kNames[Table]);
  return CUDA_ERROR_NOT_SUPPORTED;
}

template <int Table, size_t... Slot>
constexpr Slots empty(std::index_sequence<Slot...>) {
  return {reinterpret_cast<void*>(&not_there<Table, Slot>)...};
}

/// The first word of most tables is their size in bytes.
template <int Table>
Slots sized(size_t slots) {
  Slots made = empty<Table>(std::make_index_sequence<kSlots>());
  made[0] = reinterpret_cast<void*>(slots * sizeof(void*));
  return made;
}

template <class Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

// --- Of the runtime: modules from fat binaries, and the primary context

CUresult load(CUmodule* out, const void* wrapper) { return module_load(out, wrapper); }
CUresult load_with_options(CUmodule* out, const void* wrapper, void*, void*, size_t) {
  return module_load(out, wrapper);
}
CUresult load_header(const void* header, CUmodule* out, void*, void*, unsigned) { return module_load(out, header); }
CUresult registration_ends(void*) { return CUDA_SUCCESS; }  // of a fat binary, at the end of the process

Slots runtime() {
  Slots made = sized<kRuntime>(10);
  made[1] = slot(&load);
  made[2] = slot<CUresult(CUcontext*, CUdevice)>(&cuDevicePrimaryCtxRetain);
  made[6] = slot(&load_with_options);
  made[7] = slot(&registration_ends);
  made[8] = slot(&load_header);
  return made;
}

// --- Of the callback hooks: which calls a profiler wants to be told of. None.

uint64_t wanted_calls[1024], wanted_domains[16];
void hooks_of_calls(void** at, size_t* count) { *at = wanted_calls, *count = 1024; }
void hooks_of_domains(void** at, size_t* count) { *at = wanted_domains, *count = 16; }

Slots callback_hooks() {
  Slots made = sized<kCallbackHooks>(7);
  made[2] = slot(&hooks_of_calls);
  made[6] = slot(&hooks_of_domains);
  return made;
}

// --- Of the context storage: values that a library keeps with a context, and is told of when that ends

struct Kept {
  Context* context;
  const void* key;
  void* value;
  void (*ended)(CUcontext, const void* key, void* value);
};
std::vector<Kept>& kept() {
  static std::vector<Kept>& all = *new std::vector<Kept>;
  return all;
}

Context* named_or_current(CUcontext context) { return context == nullptr ? current_context() : context_of(context); }

CUresult storage_put(CUcontext handle, const void* key, void* value, void (*ended)(CUcontext, const void*, void*)) {
  std::lock_guard guard(lock());
  Context* context = named_or_current(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  kept().push_back({context, key, value, ended});
  return CUDA_SUCCESS;
}

CUresult storage_remove(CUcontext handle, const void* key) {
  std::lock_guard guard(lock());
  Context* context = named_or_current(handle);
  return std::erase_if(kept(), [&](const Kept& each) { return each.context == context && each.key == key; }) != 0
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_HANDLE;
}

CUresult storage_get(void** value, CUcontext handle, const void* key) {
  std::lock_guard guard(lock());
  Context* context = named_or_current(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  for (const Kept& each : kept())
    if (each.context == context && each.key == key) return *value = each.value, CUDA_SUCCESS;
  return CUDA_ERROR_INVALID_HANDLE;
}

Slots context_storage() {
  Slots made = empty<kContextStorage>(std::make_index_sequence<kSlots>());
  made[0] = slot(&storage_put);
  made[1] = slot(&storage_remove);
  made[2] = slot(&storage_get);
  made[3] = nullptr;
  return made;
}

}  // namespace

void storage_end(Context* context) {
  std::vector<Kept> ended;
  {
    std::lock_guard guard(lock());
    std::erase_if(kept(), [&](const Kept& each) { return each.context == context && (ended.push_back(each), true); });
  }
  for (const Kept& each : ended)
    if (each.ended != nullptr) each.ended(reinterpret_cast<CUcontext>(context), each.key, each.value);
}

}  // namespace ckpt::standin

namespace ckpt::cuda::api {

using namespace ckpt::standin;

CUresult cuGetExportTable(const void** out, const CUuuid* id) {
  static const Slots tables[kTables] = {runtime(), callback_hooks(), sized<kToolsStorage>(4), context_storage()};
  if (out == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (int table = 0; table < kTables; ++table)
    if (::memcmp(id->bytes, kIds[table], sizeof kIds[table]) == 0) return *out = tables[table].data(), CUDA_SUCCESS;
  return CUDA_ERROR_NOT_FOUND;
}

}  // namespace ckpt::cuda::api
