// From one checkpoint to another: reader, plan, writer, and a destination that is complete or absent.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "formats/torch_dist/write_plan.h"
#include "lib/base/cancel.h"
#include "lib/base/progress.h"

namespace ckpt::formats {

struct ConvertRequest {
  std::filesystem::path source, destination;
  torch_dist::PlanOptions plan;
  unsigned workers = 0;   ///< 0: one per core
  bool force = false;     ///< replace a destination that is not empty
  bool durable = true;    ///< on disk before it gets its name
  bool dry_run = false;   ///< everything but writing
};

struct ConvertReport {
  std::string source_format;
  std::vector<std::pair<std::string, uint64_t>> files;  ///< .distcp files with their sizes
  uint64_t tensors = 0, objects = 0, shards = 0, excluded = 0;
  uint64_t payload_bytes = 0;  ///< of tensors and objects
  uint64_t total_bytes = 0;    ///< on disk; an estimate, slightly high, after a dry run
  uint64_t duration_us = 0;    ///< reading the source's metadata included
  std::vector<std::string> notes;
};

/// kNotFound, kPermission: the source. kUsage: a destination that is not empty, or one that is the source, lies in it or
/// holds it. kNoRoom: the disk, found before anything is written where that can be known. kAnswerNo: a damaged source.
/// On any failure the destination is as it was.
Result<ConvertReport> convert(const ConvertRequest& request, ProgressSink& progress, const Cancel& cancel);

}  // namespace ckpt::formats
