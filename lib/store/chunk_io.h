// Chunks read back from the pages files.
#pragma once

#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/store/pagemap.h"

namespace ckpt::store {

/// Reads the chunk of `record` from `fd`, decodes it into `out` (exactly its pages) and compares it with its hash.
/// kCorrupt names `subject`, the offset and the address. `frame` gets the stored bytes of a zstd chunk. Thread-safe.
Result<void> read_chunk(int fd, const PagemapRecord& record, MutableByteSpan out, std::vector<std::byte>& frame,
                        const std::string& subject);

}  // namespace ckpt::store
