// Elements from one type to another.
#pragma once

#include <string>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/tensor/dtype.h"

namespace ckpt::tensor {

/// Whether values of one type can be asked to become the other: kUsage with the reason where not (a complex number as a
/// real one, a fraction as an integer).
Result<void> check_conversion(DType from, DType to);

/// Converts as many elements as `in` holds. Floats round to nearest, ties to even; into 8-bit floats they saturate.
/// What would lose more than the last digits is kCorrupt and names the value: a finite float that becomes infinite, an
/// integer out of range, an integer that a float cannot hold exactly, NaN or infinity in a type that has none.
/// in.size() / item_size(from) == out.size() / item_size(to).
Result<void> convert_elements(DType from, DType to, ByteSpan in, MutableByteSpan out);

}  // namespace ckpt::tensor
