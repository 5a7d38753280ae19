// Raw deflate streams, as zip archives hold them.
#pragma once

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt::formats {

/// The first bytes of a stream's content, as many as `out` holds or the beginning of the stream in `encoded` gives;
/// returns how many. kCorrupt: damaged.
Result<size_t> inflate_beginning(ByteSpan encoded, MutableByteSpan out);

/// All of a stream: `first` is filled, then `rest`, and then it must end. Returns the CRC-32 of the content.
Result<uint32_t> inflate_all(ByteSpan encoded, MutableByteSpan first, MutableByteSpan rest);

}  // namespace ckpt::formats
