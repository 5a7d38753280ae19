// How a file is shown.
#pragma once

#include <string>

#include "lib/state/files/record.h"

namespace ckpt::state {

inline std::string show(const store::FileIdentity& file) {
  return file.path + (file.deleted ? " (deleted)" : "");
}

}  // namespace ckpt::state
