// The header of a GGUF file (ggml/docs/gguf.md). Integers are little endian.
//
//   "GGUF"  uint32 version            1, 2 or 3
//   uint64 tensors, uint64 pairs      uint32 in version 1, as every count, length and dimension below
//   pairs:    string key, uint32 type, value
//             types: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5 i32, 6 f32, 7 bool, 8 string, 9 array, 10 u64, 11 i64, 12 f64
//             string: uint64 length, bytes.  array: uint32 type, uint64 count, values
//   tensors:  string name, uint32 axes, uint64 dimensions[axes] (fastest first), uint32 ggml type, uint64 offset
//   padding to `general.alignment` (32), then the data that offsets count from
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

/// A type of ggml: `block` elements in `bytes` bytes. Types with a dtype have one element a block.
struct GgmlType {
  uint32_t number = 0;
  std::string_view name;
  uint32_t block = 1, bytes = 0;
  std::optional<tensor::DType> dtype;
};
/// Nothing: not known.
const GgmlType* find_ggml_type(uint32_t number);

struct GgufTensor {
  std::string name;
  uint32_t type_number = 0;
  const GgmlType* type = nullptr;  ///< null: not known
  tensor::Shape shape;             ///< row-major, as the gguf package gives it to numpy: quantised rows by their bytes
  uint64_t offset = 0;             ///< from the start of the file
  uint64_t length = 0;             ///< 0 where the type is not known
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = 32;
  uint64_t data = 0;               ///< where the data begins
  uint64_t parts = 1;              ///< split.count: files that the model is cut into
  std::string metadata;            ///< the pairs, a JSON object; long arrays and strings are cut
  std::vector<GgufTensor> tensors;
};

/// Nothing: `beginning` ends before the header does. kCorrupt: malformed. kUnsupported: version or byte order. Empty
/// subject. Memory: in proportion to `beginning`.
Result<std::optional<GgufHeader>> parse_gguf_header(ByteSpan beginning);

}  // namespace ckpt::formats
