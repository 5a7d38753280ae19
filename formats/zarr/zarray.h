// `.zarray`: the metadata of one Zarr v2 array (formats.md 1.6).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/result.h"
#include "lib/tensor/catalog.h"

namespace ckpt::formats {

enum class ZarrCodec : uint8_t { kNone, kBlosc, kZstd, kZlib, kGzip, kLz4 };

struct ZarrArray {
  tensor::Shape shape, chunks;   ///< equal rank, no chunk length 0, all products fit into 64 bits
  tensor::DType dtype = tensor::DType::kFloat32;
  bool big_endian = false;
  bool fortran_order = false;
  bool void_bfloat16 = false;    ///< dtype was `<V2` or `|V2`: taken as bfloat16, which deserves a word
  char separator = '.';
  ZarrCodec codec = ZarrCodec::kNone;
  std::vector<std::byte> fill;   ///< one element, little endian; empty: null, so an absent chunk is damage

  uint64_t chunk_bytes() const;
  /// The chunk files are the tensor's bytes as they are.
  bool raw() const;
  /// Chunks along each axis.
  tensor::Shape grid() const;
};

/// kAnswerNo: malformed. kUnsupported: a dtype, codec, filter or version that is not read here, named.
/// `megatron`: `V2` is bfloat16. The subject of errors is left empty.
Result<ZarrArray> parse_zarray(std::string_view json, bool megatron);

}  // namespace ckpt::formats
