// The index of a Zarr v3 shard: for every inner chunk, in the order of the grid, where it lies in the shard.
//
//   uint64 offset, uint64 nbytes, ...      little endian, then what the index codecs add (crc32c: 4 bytes);
//                                          both 2^64-1: the chunk is absent and holds the fill value
#pragma once

#include "formats/zarr/array.h"

namespace ckpt::formats {

struct ShardEntry {
  uint64_t offset = 0, length = 0;   ///< from the start of the shard
  bool absent = false;
};

/// Bytes of an index of so many chunks as it is stored; nothing on overflow.
std::optional<uint64_t> shard_index_bytes(const ZarrSharding& level, uint64_t chunks);

/// `stored`: exactly the index. kCorrupt: a wrong checksum; chunks that reach out of the shard, overlap each other or
/// the index.
Result<std::vector<ShardEntry>> parse_shard_index(const ZarrSharding& level, ByteSpan stored, uint64_t chunks,
                                                  uint64_t shard_bytes);

}  // namespace ckpt::formats
