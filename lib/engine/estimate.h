// What -n of pre-dump and dump says.
#pragma once

#include <filesystem>
#include <string>

#include "lib/base/result.h"
#include "lib/engine/dump.h"

namespace ckpt::engine {

struct DumpEstimate {
  std::string process;  ///< "4711 (python3)"
  uint64_t pages_scanned = 0, pages_to_copy = 0, pages_unchanged = 0;
  uint64_t bytes_expected =
      0;  ///< of pages in the image: drawn from a sample, without what repeats or is as in the parent
  uint64_t room_bytes = 0;      ///< free where the image would lie
  std::filesystem::path parent;
  int processes = 0, threads = 0, maps = 0, descriptors = 0;
};

/// Everything that a pre-dump or a dump looks at before it touches the tree is looked at here, too, and refused in the
/// same words: the process, what stands in the way, the parent image, the destination. Nothing is stopped, and nothing
/// is left behind. kNoRoom: what one process alone is expected to take does not fit.
Result<DumpEstimate> estimate_pre_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel);
Result<DumpEstimate> estimate_dump(const DumpOptions& options, ProgressSink& progress, const Cancel& cancel);

struct Capture;
/// Both, once it is known which.
Result<DumpEstimate> estimate(Capture& capture);

}  // namespace ckpt::engine
