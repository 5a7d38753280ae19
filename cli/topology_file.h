// --topology: the file that tells what each rank is.
#pragma once

#include <string>

#include "lib/base/io.h"
#include "lib/base/topology.h"

namespace ckpt::cli {

inline Result<std::string> read_topology_text(const std::string& path) {
  constexpr uint64_t kMost = 16 << 20;
  return io::read_file(path, kMost);
}

}  // namespace ckpt::cli
