// Shared anonymous memory that several mappings show, or one from the middle of it.
#pragma once

#include <cstdint>
#include <map>

#include "lib/rebuild/inherited.h"
#include "lib/rebuild/reasons.h"
#include "lib/store/process_image.h"

namespace ckpt::rebuild {

/// Makes each such object in ckpt and gives an inherited descriptor of it, by MemoryMap::shared_object. An object with
/// a single mapping from its start needs none: mmap makes it.
std::map<uint64_t, int> make_shared_objects(const store::ProcessImage& image, Inherited& inherited, Reasons& reasons);

}  // namespace ckpt::rebuild
