// A range of a file, front to back, for work that looks at every byte once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt {

/// One per thread. Pages that were not in the page cache before are dropped after they were read: going over a
/// checkpoint of terabytes leaves the cache to those who need it, and what was warm stays warm. Memory: one block.
class FileStream {
 public:
  /// Large enough for the kernel's read-ahead, small enough to be still in the second-level cache when it is hashed.
  static constexpr size_t kBlock = 512 << 10;

  /// `each` sees [offset, offset + length) in blocks, in order, and may stop the work. A short file is kCorrupt.
  Result<void> read(int fd, uint64_t offset, uint64_t length, const std::string& subject,
                    const std::function<Result<void>(ByteSpan)>& each);

 private:
  std::vector<std::byte> block_;
  std::vector<unsigned char> resident_;
};

}  // namespace ckpt
