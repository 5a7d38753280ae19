// Retention of process images in one folder: by rules, from what is on the disk.
#pragma once

#include <filesystem>
#include <vector>

#include "cli/command.h"
#include "lib/schedule/retention.h"
#include "lib/store/remove.h"

namespace ckpt::cli {

void add_retention_flags(VerbOptions& app, schedule::RetentionRules& rules);

/// The images directly in `folder` whose manifests can be read. Damaged ones are nobody's business here.
Result<std::vector<schedule::KnownSave>> images_in(const std::filesystem::path& folder);

/// Removes what the rules do not keep. A parent that an image needs stays, wherever that one lies. What was removed
/// before a failure is in `removed`, too.
struct RetentionRequest {
  std::filesystem::path folder;
  schedule::RetentionRules rules;
  schedule::Order order = schedule::Order::kTime;
  bool dry_run = false;
};
Result<void> apply_retention(const RetentionRequest& request, std::vector<store::RemovedImage>& removed,
                             ProgressSink& notes, const Cancel& cancel);

}  // namespace ckpt::cli
