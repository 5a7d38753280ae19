// Element types as numpy names them: .npy headers, Zarr v2 and its filters.
#pragma once

#include <optional>
#include <string_view>

#include "lib/tensor/dtype.h"

namespace ckpt::formats {

struct NumpyType {
  tensor::DType dtype = tensor::DType::kUint8;
  bool big_endian = false;
};

/// "<f4", ">i2", "|u1". Nothing: no number that tensors hold, or one without its byte order.
std::optional<NumpyType> parse_numpy_type(std::string_view name);

}  // namespace ckpt::formats
