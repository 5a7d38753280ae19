// How a pipe is shown.
#pragma once

#include <fmt/format.h>

#include <string>

#include "lib/base/text.h"
#include "lib/state/pipes/record.h"

namespace ckpt::state {

/// `index`: tells the pipes of an image apart.
inline std::string show(int index, const store::Pipe& pipe) {
  return fmt::format("pipe {}, {} in it", index, human_bytes(pipe.content_size));
}

}  // namespace ckpt::state
