// How a socket is shown.
#pragma once

#include <string>

#include "lib/state/sockets/record.h"

namespace ckpt::state {

/// "unix stream, connected, 3 B in its queues".
std::string show(const store::Socket& socket);

}  // namespace ckpt::state
