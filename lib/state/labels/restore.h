// Processes are made by ckpt, and have what security modules call ckpt, until they ask for what they had.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/base/progress.h"
#include "lib/state/labels/change.h"
#include "lib/state/reasons.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Whether the image says what they were: those of an older ckpt do not, which is not "none".
bool records_labels(const store::TreeImage& tree);

struct LabelRules {
  std::vector<store::SecurityLabel> own;  ///< of ckpt, which its processes begin with
  std::string profile;                    ///< in place of each label that there was; empty: none (see change_to)
  std::function<Result<void>(const LabelChange&)> try_change;
};
/// The changes to be made. kPermission for each thread that would be called something else than it was, where that is
/// known, and the kernel does not change it.
LabelChanges check_labels(const store::TreeImage& tree, const LabelRules& rules, Reasons& reasons);
/// Of ckpt itself. An image that does not tell is noted, where a module is there that gives labels. `may_change`: else
/// the image is another user's, who could choose what only ckpt's own label lets it become.
LabelChanges check_labels(const store::TreeImage& tree, const std::string& profile, bool may_change, Reasons& reasons,
                          ProgressSink& progress);

}  // namespace ckpt::restore
