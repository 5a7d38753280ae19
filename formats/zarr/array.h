// One Zarr array as its metadata describes it, of version 2 or 3.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/zarr/codecs.h"
#include "lib/tensor/catalog.h"
#include "lib/tensor/permute.h"

namespace ckpt::formats {

/// The largest metadata document of one array that is read.
inline constexpr uint64_t kMaxZarrDocument = 1 << 20;
inline constexpr size_t kMaxZarrRank = 64;
inline constexpr size_t kMaxZarrNesting = 64;  ///< of JSON values in one another

/// A level of v3's sharding_indexed: a stored chunk that holds a grid of smaller ones, and an index of where they lie.
struct ZarrSharding {
  tensor::Shape chunk;                  ///< of the inner chunks, by the array's axes; divides the chunk around them
  tensor::AxisOrder axes;               ///< how the grid of the index runs; empty: row-major
  std::vector<ZarrCodec> index_codecs;  ///< each of a size that is known beforehand
  bool index_at_start = false;
};

struct ZarrArray {
  tensor::Shape shape, chunks;   ///< equal rank, no chunk length 0, all products fit into 64 bits. Each chunk is a file
  tensor::DType dtype = tensor::DType::kFloat32;
  bool void_bfloat16 = false;    ///< dtype was `<V2` or `|V2`: taken as bfloat16, which deserves a word
  std::string prefix;            ///< of the names of chunk files: "c" and the separator, or nothing
  std::string scalar_name = "0"; ///< the only chunk of an array without axes
  char separator = '.';
  std::vector<ZarrSharding> sharding;   ///< outermost first
  std::vector<ZarrCodec> codecs;        ///< from a stored innermost chunk to its elements, in the order of decoding
  tensor::AxisOrder axes;        ///< how these elements lie; empty: row-major
  std::vector<std::byte> fill;   ///< one element, little endian; empty: null, so an absent chunk is damage

  /// The chunk that is encoded as one: the innermost.
  const tensor::Shape& stored_chunk() const { return sharding.empty() ? chunks : sharding.back().chunk; }
  uint64_t chunk_bytes() const;
  /// Bytes of a stored innermost chunk, where they do not depend on its content.
  std::optional<uint64_t> stored_chunk_bytes() const;
  /// Stored innermost chunks are the tensor's bytes as they are.
  bool raw() const { return codecs.empty() && axes.empty(); }
  /// Chunk files along each axis.
  tensor::Shape grid() const;
  std::string chunk_name(const tensor::Shape& index) const;
};

/// kCorrupt: shape and chunks do not fit each other, or hold more elements than can be counted. kUnsupported: codecs
/// in an order that cannot be undone. `what`: the name of the document, for the message. Makes `axes` empty where they
/// change nothing.
Result<void> check_array(ZarrArray& array, const std::string& what);

/// One element from `fill_value`, a JSON value: number, truth value, "NaN", "Infinity", "-Infinity", "0x" and the bits
/// in hex, a pair of these for complex numbers. kUnsupported: no value of this type.
Result<std::vector<std::byte>> parse_fill_value(std::string_view json, tensor::DType dtype);

}  // namespace ckpt::formats
