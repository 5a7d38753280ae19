// Arithmetic on numbers that a file or a stranger supplied: an overflow is a value, never undefined behaviour.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

namespace ckpt {

template <class T>
std::optional<T> checked_add(T a, T b) {
  T out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <class T>
std::optional<T> checked_mul(T a, T b) {
  T out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

/// Product of all `factors`, or nothing on overflow. The empty product is 1.
inline std::optional<uint64_t> checked_product(std::span<const uint64_t> factors) {
  uint64_t out = 1;
  for (uint64_t f : factors) {
    if (__builtin_mul_overflow(out, f, &out)) return std::nullopt;
  }
  return out;
}

template <class To, class From>
std::optional<To> checked_cast(From value) {
  To out = static_cast<To>(value);
  if (static_cast<From>(out) != value || (out < To{}) != (value < From{})) return std::nullopt;
  return out;
}

template <class T>
constexpr T align_up(T value, T alignment) { return (value + alignment - 1) / alignment * alignment; }
template <class T>
constexpr T align_down(T value, T alignment) { return value / alignment * alignment; }

}  // namespace ckpt
