// The codecs of Zarr, as numcodecs and the v3 specification frame them: from a stored chunk back to its elements.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/numpy_type.h"
#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::formats {

inline Unexpected unsupported_in_zarr(std::string what) { return fail(Code::kUnsupported, "", std::move(what)); }

/// One step on the way back. Plain data: which members count depends on the kind.
struct ZarrCodec {
  enum class Kind : uint8_t {
    kBlosc, kZstd, kZlib, kGzip, kLz4, kBz2,  ///< compressors
    kCrc32c, kCrc32, kAdler32,                ///< four bytes that are compared and dropped
    kSwap,                                    ///< the other byte order, every `unit` bytes
    kShuffle,                                 ///< all first bytes, all second bytes, ... of elements of `unit` bytes
    kDelta,                                   ///< each element is the difference to the one before
    kScaleOffset,                             ///< stored = (element - offset) * scale
  };
  Kind kind = Kind::kZstd;
  uint32_t unit = 1;
  bool at_start = false;          ///< where the four bytes lie
  NumpyType stored, decoded;     ///< kDelta, kScaleOffset
  double offset = 0, scale = 1;
};

/// A codec of numcodecs by its id and configuration (a JSON object), as .zarray has it and v3 under "numcodecs.ID".
/// Nothing: it changes nothing on the way back (quantize, bitround). kUnsupported: not read, named.
Result<std::optional<ZarrCodec>> parse_numcodec(const std::string& id, std::string_view config);

/// Bytes that a step starts from to give `decoded` bytes; nothing for compressors.
std::optional<uint64_t> stored_bytes(const ZarrCodec& codec, uint64_t decoded);

/// Undoes the steps, the first one first: exactly `out.size()` bytes or kCorrupt; a stream that holds less or more is
/// damage. Memory: for several compressors in a row, or filters, two buffers of about the size of `out`.
Result<void> decode_steps(std::span<const ZarrCodec> steps, ByteSpan encoded, MutableByteSpan out);

/// One filter or checksum. `in` and `out` have the sizes that `stored_bytes` gives.
Result<void> undo_filter(const ZarrCodec& codec, ByteSpan in, MutableByteSpan out);
/// The bytes without their checksum, which must be right.
Result<ByteSpan> check_and_strip(const ZarrCodec& codec, ByteSpan encoded);

}  // namespace ckpt::formats
