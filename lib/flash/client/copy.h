// Memory to memory, as fast as the host's memory goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ckpt::flash {

struct CopyPart {
  void* to;
  const void* from;
  uint64_t bytes;
};

/// Copies all parts with so many threads, this one among them.
void copy_all(const std::vector<CopyPart>& parts, unsigned threads);

}  // namespace ckpt::flash
