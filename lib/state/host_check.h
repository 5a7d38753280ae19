// What this host must offer for an image, and the numbers that must be free.
#pragma once

#include "lib/state/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// Privilege, CPU, vdso.
void check_host(const store::HostFacts& then, const store::TreeImage& tree, Reasons& reasons);
/// Parts of it, and what else a host may lack.
void check_vdso(const store::TreeImage& tree, Reasons& reasons);
void check_pid_max(const store::TreeImage& tree, Reasons& reasons);
/// Every pid and tid. A zombie that is about to be reaped gets a second for it.
void check_numbers(const store::TreeImage& tree, Reasons& reasons);

}  // namespace ckpt::restore
