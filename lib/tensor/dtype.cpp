#include "lib/tensor/dtype.h"

#include <array>

namespace ckpt::tensor {

namespace {

struct Row {
  DType dtype;
  std::string_view name;
  uint32_t bytes;
};

/// In the order of the enumeration.
constexpr std::array<Row, 22> kRows = {{
    {DType::kBool, "bool", 1},
    {DType::kUint8, "uint8", 1},
    {DType::kInt8, "int8", 1},
    {DType::kUint16, "uint16", 2},
    {DType::kInt16, "int16", 2},
    {DType::kUint32, "uint32", 4},
    {DType::kInt32, "int32", 4},
    {DType::kUint64, "uint64", 8},
    {DType::kInt64, "int64", 8},
    {DType::kFloat16, "float16", 2},
    {DType::kBfloat16, "bfloat16", 2},
    {DType::kFloat32, "float32", 4},
    {DType::kFloat64, "float64", 8},
    {DType::kComplex32, "complex32", 4},
    {DType::kComplex64, "complex64", 8},
    {DType::kComplex128, "complex128", 16},
    {DType::kFloat8E4m3fn, "float8_e4m3fn", 1},
    {DType::kFloat8E5m2, "float8_e5m2", 1},
    {DType::kFloat8E4m3fnuz, "float8_e4m3fnuz", 1},
    {DType::kFloat8E5m2fnuz, "float8_e5m2fnuz", 1},
    {DType::kFloat8E8m0fnu, "float8_e8m0fnu", 1},
    {DType::kFloat4E2m1fnX2, "float4_e2m1fn_x2", 1},
}};

}  // namespace

uint32_t item_size(DType dtype) { return kRows[static_cast<size_t>(dtype)].bytes; }

std::string_view dtype_name(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace ckpt::tensor
