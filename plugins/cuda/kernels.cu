// The hash of device memory (lib/device/hash.h) on the device, at the speed of the memory: a block of 128 threads takes
// a chunk, each thread two neighbouring lanes, 16 bytes a load. No driver or runtime call is here: it is compiled to a
// fatbin.
#include "lib/device/hash.h"
#include "plugins/cuda/kernels.h"

namespace {

using ckpt::device::ChunkHash;
constexpr uint32_t kThreads = ckpt::cuda::kKernelThreads;
constexpr uint32_t kLanes = ckpt::device::kHashLanes, kRowWords = ckpt::device::kHashRowWords;
static_assert(kThreads * 2 == kLanes);

struct Lane {
  uint64_t a, b;
};

__device__ void reduce(Lane* shared, const Lane& first, const Lane& second, uint64_t bytes, ChunkHash* out) {
  shared[2 * threadIdx.x] = first;
  shared[2 * threadIdx.x + 1] = second;
  for (uint32_t s = kLanes / 2; s != 0; s /= 2) {
    __syncthreads();
    if (threadIdx.x >= s) continue;
    Lane &low = shared[threadIdx.x], &high = shared[threadIdx.x + s];
    ckpt::device::hash_step(low.a, low.b, high.a, high.b);
  }
  if (threadIdx.x == 0) *out = ckpt::device::hash_finish(shared[0].a, shared[0].b, bytes);
  __syncthreads();
}

/// What is stored is what was loaded, once; the hash is of that.
template <bool kCopy>
__device__ void take(Lane* shared, const uint64_t* from, uint64_t* to, uint64_t bytes, ChunkHash* out) {
  Lane first, second;
  ckpt::device::hash_seed(2 * threadIdx.x, first.a, first.b);
  ckpt::device::hash_seed(2 * threadIdx.x + 1, second.a, second.b);
  const uint64_t rows = bytes / ckpt::device::kHashRow;
#pragma unroll 4
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t at = row * kRowWords + 2 * threadIdx.x;
    const ulonglong2 low = __ldcs(reinterpret_cast<const ulonglong2*>(from + at));
    const ulonglong2 high = __ldcs(reinterpret_cast<const ulonglong2*>(from + at + kLanes));
    if (kCopy) {
      __stcs(reinterpret_cast<ulonglong2*>(to + at), low);
      __stcs(reinterpret_cast<ulonglong2*>(to + at + kLanes), high);
    }
    ckpt::device::hash_step(first.a, first.b, low.x, high.x);
    ckpt::device::hash_step(second.a, second.b, low.y, high.y);
  }
  reduce(shared, first, second, bytes, out);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    ckpt_hash_chunks(const uint64_t* from, uint64_t chunk, uint64_t chunks, ChunkHash* out) {
  __shared__ Lane shared[kLanes];
  for (uint64_t i = blockIdx.x; i < chunks; i += gridDim.x)
    take<false>(shared, from + i * (chunk / 8), nullptr, chunk, out + i);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    ckpt_copy_and_hash(const __grid_constant__ ckpt::cuda::ChunkAddresses from, uint64_t chunk, uint64_t chunks,
                       uint64_t* to, ChunkHash* out) {
  __shared__ Lane shared[kLanes];
  for (uint64_t i = blockIdx.x; i < chunks; i += gridDim.x)
    take<true>(shared, reinterpret_cast<const uint64_t*>(from.at[i]), to + i * (chunk / 8), chunk, out + i);
}
