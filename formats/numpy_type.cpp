#include "formats/numpy_type.h"

namespace ckpt::formats {

using tensor::DType;

namespace {

struct Row {
  std::string_view code;
  DType dtype;
};
constexpr Row kRows[] = {
    {"b1", DType::kBool},    {"u1", DType::kUint8},    {"i1", DType::kInt8},      {"u2", DType::kUint16},
    {"i2", DType::kInt16},   {"u4", DType::kUint32},   {"i4", DType::kInt32},     {"u8", DType::kUint64},
    {"i8", DType::kInt64},   {"f2", DType::kFloat16},  {"f4", DType::kFloat32},   {"f8", DType::kFloat64},
    {"c8", DType::kComplex64}, {"c16", DType::kComplex128},
};

}  // namespace

std::optional<NumpyType> parse_numpy_type(std::string_view name) {
  if (name.size() < 3 || (name[0] != '<' && name[0] != '>' && name[0] != '|')) return std::nullopt;
  for (const Row& row : kRows) {
    if (name.substr(1) != row.code) continue;
    const bool single = tensor::item_size(row.dtype) == 1;
    if (name[0] == '|' && !single) return std::nullopt;
    return NumpyType{row.dtype, name[0] == '>' && !single};
  }
  return std::nullopt;
}

}  // namespace ckpt::formats
