// What stands before the elements in a .npy file (numpy/lib/format.py).
#pragma once

#include <string>

#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// numpy's name of a little-endian dtype: "<f4". What numpy has no type for gets the void type of its size, as numpy itself
/// writes the types of ml_dtypes: "<V2" for bfloat16 (np.load(...).view(ml_dtypes.bfloat16)), "|V1" for float8, "<V4" for
/// complex32. An integer type would be taken for numbers.
std::string npy_descr(tensor::DType dtype);

/// Magic, version (1.0, or 2.0 where the header is longer than 64 KiB), the dictionary, and padding to a multiple of 64. The
/// elements follow, row-major.
std::string npy_header(tensor::DType dtype, const tensor::Shape& shape);

}  // namespace ckpt::formats
