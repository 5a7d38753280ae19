// Elements as numbers: what stored bits mean, for every dtype. Complex numbers count by their magnitude.
#pragma once

#include <array>
#include <cstddef>

#include "lib/base/bytes.h"
#include "lib/tensor/dtype.h"

namespace ckpt::tensor {

/// What the 256 values of a one-byte dtype mean (bool: anything but 0 is 1). Float8 as in the OCP and the fnuz
/// definitions; of float4_e2m1fn_x2, whose elements are two numbers, the byte.
using ByteTable = std::array<float, 256>;
const ByteTable& byte_table(DType dtype);

/// Little-endian elements as doubles: exact but for the 64-bit integers past 2^53 and the magnitudes of complex
/// numbers, which are rounded. A complex number with a NaN part is NaN, else one with an infinite part infinite. `in`:
/// whole elements, `out`: that many.
void to_doubles(DType dtype, ByteSpan in, double* out);

bool is_complex(DType dtype);
bool is_floating(DType dtype);
/// The 64-bit integers, which a double does not hold.
bool is_wide_integer(DType dtype);

}  // namespace ckpt::tensor
