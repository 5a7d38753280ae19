// Element types of tensors, under the names that torch gives them (formats.md 3.7).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ckpt::tensor {

enum class DType : uint8_t {
  kBool, kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kUint64, kInt64,
  kFloat16, kBfloat16, kFloat32, kFloat64, kComplex32, kComplex64, kComplex128,
  kFloat8E4m3fn, kFloat8E5m2, kFloat8E4m3fnuz, kFloat8E5m2fnuz, kFloat8E8m0fnu,
  kFloat4E2m1fnX2,  ///< two numbers of four bits in a byte, which is one element
};

/// Bytes of one element: 1 to 16.
uint32_t item_size(DType dtype);
/// "bfloat16", "float8_e4m3fn", ...
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace ckpt::tensor
