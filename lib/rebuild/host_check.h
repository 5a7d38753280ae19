// What this host must offer for an image, and the numbers that must be free.
#pragma once

#include "lib/rebuild/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::rebuild {

/// Privilege, CPU, vdso, pid_max.
void check_host(const store::HostFacts& then, const store::TreeImage& tree, Reasons& reasons);
/// Every pid and tid. A zombie that is about to be reaped gets a second for it.
void check_numbers(const store::TreeImage& tree, Reasons& reasons);

}  // namespace ckpt::rebuild
