// The real driver behind the entry points: found and loaded when a program first calls one.
#pragma once

#include <atomic>
#include <string>

#include "plugins/cuda/driver_api.h"
#include "plugins/interposer/names.h"

namespace ckpt::interposer {

using namespace ckpt::cuda::api;  // NOLINT: this library is about nothing else

/// The driver's own functions by index; null where it has none.
extern void* g_real[kNameCount];

/// Loads the driver and fills the slots; once. False: there is none.
bool load_driver();
/// Where the driver's file is; empty: nowhere. CKPT_CUDA_DRIVER, LD_LIBRARY_PATH, the loader's cache, the usual
/// folders.
std::string find_driver();
/// The wrapper to call instead of the driver's function; null: none.
void* wrapper_of(size_t index);
/// By a pointer that the driver gave: whose function that is. kNameCount: not one of the table.
size_t index_of_real(const void* function);
/// What a caller of the driver's cuGetProcAddress gets in the place of `function`.
void* instead_of(const char* symbol, void* function, uint64_t flags);

/// The driver's function of that signature; calling one that it lacks answers CUDA_ERROR_NOT_FOUND.
template <size_t Index, class... A>
inline CUresult real(A... args) {
  static_assert(Index < kNameCount);
  auto* function = reinterpret_cast<CUresult (*)(A...)>(g_real[Index]);
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(args...);
}

// One callable for each function that ckpt declares: drv::cuMemAlloc_v2(&p, n).
namespace drv {
template <size_t Index, class F>
struct Call;
template <size_t Index, class... A>
struct Call<Index, CUresult(A...)> {
  CUresult operator()(A... args) const { return real<Index, A...>(args...); }
  explicit operator bool() const { return g_real[Index] != nullptr; }
};
#define CKPT_CUDA(function, parameters) inline constexpr Call<index_of(#function), CUresult parameters> function{};
#define CKPT_CUDA_OLD(function, parameters) CKPT_CUDA(function, parameters)
#include "plugins/cuda/driver_functions.inc"
}  // namespace drv

}  // namespace ckpt::interposer
