// The thread that answers ckpt (plugins/cuda/agent_protocol.h).
#pragma once

namespace ckpt::interposer {

/// Once a process; after the first successful cuInit.
void start_agent();

}  // namespace ckpt::interposer
