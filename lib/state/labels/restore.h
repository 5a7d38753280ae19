// Processes are made by ckpt, and have what security modules call ckpt.
#pragma once

#include <vector>

#include "lib/state/reasons.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// kPermission for each thread that would be called something else than it was.
void check_labels(const store::TreeImage& tree, const std::vector<store::SecurityLabel>& own, Reasons& reasons);
/// Of ckpt itself.
void check_labels(const store::TreeImage& tree, Reasons& reasons);

}  // namespace ckpt::restore
