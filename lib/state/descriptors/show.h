// What a descriptor leads to, for people. Each kind's text is in its folder.
#pragma once

#include <string>

#include "lib/store/process_image.h"

namespace ckpt::state {

/// "/var/log/x", "count 3", "unix stream, connected"; "" where an image does not say.
std::string show(const store::TreeImage& tree, const store::Descriptor& descriptor);

}  // namespace ckpt::state
