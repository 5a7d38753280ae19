// What the device kernels and those who launch them share.
//
//   ckpt_hash_chunks(from, chunk, chunks, out)     the hashes of `chunks` chunks of `chunk` bytes that follow each
//   other ckpt_copy_and_hash(from, chunk, chunks, to, out)   the same of chunks here and there, copied to one run at
//   `to`
#pragma once

#include <cstdint>

namespace ckpt::cuda {

inline constexpr uint32_t kKernelThreads = 128;  ///< of a block
inline constexpr uint32_t kMostChunks =
    2048;  ///< of one launch of ckpt_copy_and_hash: they go as a parameter, by value
struct ChunkAddresses {
  uint64_t at[kMostChunks];
};

}  // namespace ckpt::cuda
