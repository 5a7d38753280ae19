// What an address space holds from its birth.
#pragma once

#include <vector>

#include "lib/store/process_image.h"

namespace ckpt::restore {

/// What an address space holds that is about to be cloned, and that of the clone (lib/memory/sharing.h).
struct HeldMemory {
  store::ProcessImage layout;   ///< its maps alone, the vdso among them; what has pages can be written to
  std::vector<size_t> blocks;   ///< of the image, by address: their pages that lie in these maps
};

}  // namespace ckpt::restore
