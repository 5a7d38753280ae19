// The programs' kernels for a real GPU; built without contraction of multiplications and additions (-fmad=false).
#include "tests/device/programs/kernels.h"

#define EACH(i, count)                                                                        \
  for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < (count); \
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x)

extern "C" {

__global__ void fill(uint64_t* out, uint64_t count, uint64_t seed) {
  EACH(i, count) out[i] = word_of(seed, i);
}

/// Counts the words that are wrong.
__global__ void verify(const uint64_t* in, uint64_t count, uint64_t seed, unsigned long long* wrong) {
  EACH(i, count) if (in[i] != word_of(seed, i)) atomicAdd(wrong, 1ull);
}

__global__ void begin(float* weights, float* momenta, uint64_t count) {
  EACH(i, count) weights[i] = weight_of(i), momenta[i] = 0;
}

__global__ void train(float* weights, float* momenta, uint64_t count, uint32_t step) {
  EACH(i, count) train_element(&weights[i], &momenta[i], i, step);
}

/// One thread, so that the sum has one order.
__global__ void loss(const float* weights, uint64_t count, float* out) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  float sum = 0;
  for (uint64_t i = 0; i < count; i += 61) sum = sum + weights[i] * weights[i];
  *out = sum;
}

__global__ void add(uint64_t* counter, uint64_t by) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *counter += by;
}

/// Writes where the table says: no argument of the launch shows it.
__global__ void scatter(uint64_t* const* table, uint64_t entries, uint64_t value) {
  EACH(i, entries) *table[i] = word_of(value, i);
}

/// Until the host says stop.
__global__ void spin(volatile uint32_t* stop) {
  while (*stop == 0) {
  }
}
}
