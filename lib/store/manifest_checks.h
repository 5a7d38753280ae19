// What holds between the members of a manifest: indices lead somewhere, mappings are in order, ids are ids.
#pragma once

#include <string>

#include "lib/store/image.h"

namespace ckpt::store {

/// The first fault with its place, "tree.processes[0].maps[3]: ..."; empty: none.
std::string check_manifest(const Manifest& manifest);

}  // namespace ckpt::store
