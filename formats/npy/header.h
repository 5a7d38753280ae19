// What stands before the elements in a .npy file (numpy/lib/format.py).
#pragma once

#include <string>
#include <string_view>

#include "lib/base/bytes.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// numpy's name of a little-endian dtype: "<f4". What numpy has no type for gets the void type of its size, as numpy
/// itself writes the types of ml_dtypes: "<V2" for bfloat16 (np.load(...).view(ml_dtypes.bfloat16)), "|V1" for float8,
/// "<V4" for complex32. An integer type would be taken for numbers.
std::string npy_descr(tensor::DType dtype);

/// False: npy_descr is a void type.
bool has_numpy_type(tensor::DType dtype);

/// Magic, version (1.0, or 2.0 where the header is longer than 64 KiB), the dictionary, and padding to a multiple of
/// `alignment` (of 64; numpy takes headers of up to 10,000 bytes). The elements follow, row-major.
std::string npy_header(tensor::DType dtype, const tensor::Shape& shape, size_t alignment = 64);

/// In a folder of .npy files: {"KEY": "bfloat16", ...} for elements that numpy has no type for.
inline constexpr std::string_view kNpyTypes = "dtypes.json";

struct NpyHeader {
  tensor::Shape shape;            ///< all bytes of the elements can be counted
  tensor::DType dtype = tensor::DType::kFloat32;
  bool void_type = false;         ///< descr was "<V2": taken as bfloat16, which deserves a word
  bool big_endian = false;
  bool fortran_order = false;
  uint64_t data = 0;              ///< where the elements begin
  uint64_t data_bytes() const { return tensor::element_count(shape).value_or(0) * tensor::item_size(dtype); }
};

inline constexpr uint64_t kNpyPrefix = 12;             ///< holds magic, version and the header's length
inline constexpr uint64_t kMaxNpyHeader = 128 << 10;   ///< only structured types make longer ones

/// Bytes in front of the elements, from the first kNpyPrefix bytes of a file (or fewer, if there are no more).
/// kCorrupt: no .npy file. kUnsupported: its version, or a header longer than the limit. The subject of errors is left
/// empty, here and below.
Result<uint64_t> npy_header_bytes(ByteSpan first);

/// What these bytes say. The dictionary is read as such: nothing is evaluated. kUnsupported: Python objects, structured
/// types, times, texts and other types that are no numbers, named. `as`: the dtype of elements that numpy has no type
/// for, if known.
Result<NpyHeader> parse_npy_header(ByteSpan header, std::optional<tensor::DType> as = std::nullopt);

}  // namespace ckpt::formats
