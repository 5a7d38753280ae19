// Elements put into another order: what other programs store column by column or with the other end first.
#pragma once

#include <span>

#include "lib/base/bytes.h"
#include "lib/tensor/catalog.h"

namespace ckpt::tensor {

/// Which axis of a tensor runs how in memory: axes[i] is the tensor's axis that memory's axis i is, outermost first.
/// Empty: row-major. Column-major (Fortran) is {n-1, ..., 0}.
using AxisOrder = std::vector<uint32_t>;

/// All of `from` (elements of `item` bytes in the order `axes`) as row-major elements. Both hold exactly the shape's
/// elements.
void to_row_major(const Shape& shape, const AxisOrder& axes, size_t item, ByteSpan from, MutableByteSpan to);

/// Whether elements in this order lie as row-major ones do: axes of length 1 may be anywhere.
bool is_row_major(const Shape& shape, const AxisOrder& axes);

/// The bytes of every `unit` bytes backwards. What is left over at the end stays as it is.
void swap_bytes(MutableByteSpan data, size_t unit);

/// The number of bytes that change their ends together: an element, or each half of a complex one.
uint32_t swap_unit(DType dtype);

}  // namespace ckpt::tensor
