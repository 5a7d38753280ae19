// Writes what a plan says: .distcp files by several workers in bounded memory, then .metadata, common.pt and
// metadata.json, in the order that makes a cut-short folder look incomplete (formats.md 2.5).
#pragma once

#include <filesystem>

#include "formats/torch_dist/write_plan.h"
#include "lib/base/cancel.h"
#include "lib/base/progress.h"

namespace ckpt::torch_dist {

struct WriteControl {
  unsigned workers = 0;        ///< 0: one per core
  bool durable = true;         ///< fsync every file as soon as it is whole
  ProgressSink& progress;      ///< one phase, "convert", counted in bytes of items
  const Cancel& cancel;
};

/// Fills `folder`, which exists and is empty. On failure what was written so far stays there: the caller's folder is a
/// staging folder. kAnswerNo: the source is damaged or changed meanwhile. kInterrupted: cancelled.
Result<void> write(const Plan& plan, const std::filesystem::path& folder, const WriteControl& control);

}  // namespace ckpt::torch_dist
