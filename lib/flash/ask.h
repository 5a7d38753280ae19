// What others than trainers ask an agent.
#pragma once

#include <cstdint>
#include <string>

#include "lib/base/result.h"

namespace ckpt::flash {

/// JSON, ckpt.agent/1. kNotFound: there is no agent.
Result<std::string> agent_status(const std::string& directory, const std::string& socket);

struct Persisted {
  uint64_t step = 0, bytes = 0, write_us = 0, verify_us = 0, sync_us = 0;
  bool durable = false;
  std::string path;  ///< empty: it was on disk before, or is not yet
};
/// `step` UINT64_MAX: the newest. `folder` empty: the agent's own. kNotFound: no agent, or the step is not complete on
/// every rank, in the agent's words. Waits until it is durable, if so wanted.
Result<Persisted> ask_persist(const std::string& directory, const std::string& socket, uint64_t step,
                              const std::string& folder, bool wait);

}  // namespace ckpt::flash
