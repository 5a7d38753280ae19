// Processes are made by ckpt, and have what security modules call ckpt.
#pragma once

#include <vector>

#include "lib/base/progress.h"
#include "lib/state/reasons.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Whether the image says what they were: those of an older ckpt do not, which is not "none".
bool records_labels(const store::TreeImage& tree);
/// kPermission for each thread that would be called something else than it was, where that is known.
void check_labels(const store::TreeImage& tree, const std::vector<store::SecurityLabel>& own, Reasons& reasons);
/// Of ckpt itself. An image that does not tell is noted, where a module is there that gives labels.
void check_labels(const store::TreeImage& tree, Reasons& reasons, ProgressSink& progress);

}  // namespace ckpt::restore
