#include "plugins/interposer/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

extern "C" {
extern void* ckpt_slots[];  // trampolines.S
// Read by the assembly. The handle of this library is its link map; 1 is none.
void* ckpt_self_handle = reinterpret_cast<void*>(1);
void* (*ckpt_real_dlopen)(const char*, int) = nullptr;
void* (*ckpt_real_dlsym)(void*, const char*) = nullptr;
void* ckpt_find_dlsym();
const char* ckpt_dlopen_name(const char* name);
void* ckpt_dlsym_of_driver(void* handle, const char* name);
void* ckpt_resolve(size_t index);
}

namespace ckpt::interposer {

void* g_real[kNameCount];

namespace {

constexpr const char* kNoDriver = "libcuda.so.1 (no driver found)";

struct Found {
  const void* function;
  size_t index;
};
std::array<Found, kNameCount> g_found;  // sorted by function, `g_found_count` of them
size_t g_found_count = 0;
void* g_handle = nullptr;
std::atomic<int> g_loaded{0};  // 1: yes, -1: there is none

CUresult no_device() { return CUDA_ERROR_NO_DEVICE; }
CUresult not_found() { return CUDA_ERROR_NOT_FOUND; }

void set_slot(size_t index, void* function) { __atomic_store_n(&ckpt_slots[index], function, __ATOMIC_RELEASE); }

bool load() {
  const std::string path = find_driver();
  g_handle = path.empty() ? nullptr : ckpt_real_dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  for (size_t i = 0; i < kNameCount; ++i) {
    g_real[i] = g_handle == nullptr ? nullptr : ckpt_real_dlsym(g_handle, kNames[i].function.data());
    if (g_real[i] != nullptr) g_found[g_found_count++] = {g_real[i], i};
  }
  std::sort(g_found.begin(), g_found.begin() + g_found_count,
            [](const Found& a, const Found& b) { return a.function < b.function; });
  for (size_t i = 0; i < kNameCount; ++i) {
    void* wrapper = wrapper_of(i);
    void* fallback = reinterpret_cast<void*>(g_handle == nullptr ? &no_device : &not_found);
    set_slot(i, g_real[i] == nullptr ? fallback : wrapper != nullptr ? wrapper : g_real[i]);
  }
  return g_handle != nullptr;
}

/// The name without its version and stream form: cuMemAlloc of cuMemAlloc_v2, cuMemcpyAsync of cuMemcpyAsync_ptsz.
std::string_view base_name(std::string_view function) {
  for (std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (function.ends_with(suffix)) function.remove_suffix(suffix.size());
  }
  const size_t version = function.rfind("_v");
  return version != std::string_view::npos && version + 3 == function.size() ? function.substr(0, version) : function;
}

bool is_driver_name(const char* name) {
  const char* slash = std::strrchr(name, '/');
  const std::string_view base = slash == nullptr ? name : slash + 1;
  return base == "libcuda.so" || base.starts_with("libcuda.so.");
}

void find_loader() {
  ckpt_find_dlsym();
  if (ckpt_real_dlopen == nullptr)
    ckpt_real_dlopen = reinterpret_cast<void* (*)(const char*, int)>(ckpt_real_dlsym(RTLD_NEXT, "dlopen"));
}

__attribute__((constructor)) void find_self() {
  Dl_info info;
  void* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(&find_self), &info, &map, RTLD_DL_LINKMAP) != 0 && map != nullptr)
    ckpt_self_handle = map;
}

}  // namespace

bool load_driver() {
  // Not a function-local static: a program may come here again from a constructor of what is being loaded.
  static std::recursive_mutex mutex;
  if (const int loaded = g_loaded.load(std::memory_order_acquire); loaded != 0) return loaded > 0;
  std::lock_guard lock(mutex);
  if (const int loaded = g_loaded.load(std::memory_order_acquire); loaded != 0) return loaded > 0;
  find_loader();
  const bool there = load();
  g_loaded.store(there ? 1 : -1, std::memory_order_release);
  return there;
}

size_t index_of_real(const void* function) {
  const auto end = g_found.begin() + g_found_count;
  const auto at =
      std::lower_bound(g_found.begin(), end, function, [](const Found& a, const void* b) { return a.function < b; });
  return at != end && at->function == function ? at->index : kNameCount;
}

void* instead_of(const char* symbol, void* function, uint64_t flags) {
  size_t index = index_of_real(function);
  if (index == kNameCount) {
    // Not one that the driver exports: by its name, then, in the stream form that was asked for, the newest version of
    // those with wrappers. Such a function is not called: the exported one does the same.
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    for (size_t i = 0; i < kNameCount; ++i) {
      const std::string_view name = kNames[i].function;
      if (base_name(name) != symbol || wrapper_of(i) == nullptr || g_real[i] == nullptr) continue;
      const bool thread_form = name.ends_with("_ptsz") || name.ends_with("_ptds");
      if (thread_form == per_thread || index == kNameCount) index = i;
    }
  }
  void* wrapper = index == kNameCount ? nullptr : wrapper_of(index);
  return wrapper != nullptr ? wrapper : function;
}

}  // namespace ckpt::interposer

using namespace ckpt::interposer;

void* ckpt_find_dlsym() {
  if (ckpt_real_dlsym == nullptr) {
    void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    ckpt_real_dlsym = reinterpret_cast<void* (*)(void*, const char*)>(found);
  }
  return reinterpret_cast<void*>(ckpt_real_dlsym);
}

const char* ckpt_dlopen_name(const char* name) {
  find_loader();
  if (name == nullptr || !is_driver_name(name)) return name;
  return find_driver().empty() ? kNoDriver : "libcuda.so.1";
}

void* ckpt_dlsym_of_driver(void* handle, const char* name) {
  ckpt_find_dlsym();
  const std::string_view wanted = name;
  if (!wanted.starts_with("cu") || !load_driver()) return ckpt_real_dlsym(handle, name);
  const size_t index = index_of(wanted);
  if (index < kNameCount && g_real[index] != nullptr) return ckpt_real_dlsym(handle, name);
  return ckpt_real_dlsym(g_handle, name);  // newer than this library, or lacking: with the loader's own message
}

void* ckpt_resolve(size_t index) {
  load_driver();
  return __atomic_load_n(&ckpt_slots[index], __ATOMIC_ACQUIRE);
}
