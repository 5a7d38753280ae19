// What the programs' kernels do to one element: the same on a GPU and on the stand-in.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define CKPT_KERNEL_PART __host__ __device__ inline
#else
#define CKPT_KERNEL_PART inline
#endif

CKPT_KERNEL_PART uint64_t word_of(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9E3779B97F4A7C15u + (index + 1) * 0xD1B54A32D192ED03u;
  x ^= x >> 32;
  x *= 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 29);
}

/// A start that differs from element to element.
CKPT_KERNEL_PART float weight_of(uint64_t index) {
  return static_cast<float>(static_cast<int>(word_of(7, index) % 2001) - 1000) * 0.001f;
}

/// One step of descent towards a target that moves, with momentum. No operation is left to the compiler to contract.
CKPT_KERNEL_PART void train_element(float* weight, float* momentum, uint64_t index, uint32_t step) {
  float wanted = static_cast<float>((index + step) % 17) * 0.125f;
  float slope = *weight - wanted;
  float carried = *momentum * 0.5f;
  *momentum = carried + slope;
  float change = *momentum * 0.0625f;
  *weight = *weight - change;
}
