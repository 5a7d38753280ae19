// The agent of a node: owns the memory that trainers save to, and writes it to disk. One thread serves the socket;
// what takes long (touching pages, persisting, loading) is done by others.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::flash {

struct AgentOptions {
  std::filesystem::path directory;  ///< of the checkpoints; made if it is missing
  std::string socket;               ///< empty: in the run folder
  std::string format = "dcp";
  unsigned keep = 0;           ///< checkpoints; 0: all
  uint64_t every = 0;          ///< persists steps that are a multiple of it; 0: none by itself
  uint64_t rate = 0;           ///< bytes a second; 0: as fast as it goes
  unsigned buffers = 0;        ///< of each rank; 0: two where memory allows
  uint64_t grace_ms = 30'000;  ///< for the last persist, after SIGTERM
  uint64_t agree_ms = 30'000;  ///< for the agents of the job's other nodes to join a checkpoint
  uint64_t lost_ms = 30'000;   ///< without a sign of life of one of these, while it writes its part
  uint64_t linger_ms = 0;      ///< ends so long after the last trainer did; 0: never
  bool on_death = true;        ///< persists when a trainer dies
  bool verify = true;
};

/// What it tells while it runs, one line each, unescaped.
using Tell = std::function<void(const std::string& line)>;

/// What an agent's end has left.
struct AgentEnd {
  bool saved = true;  ///< the newest step that all ranks had is on disk
  uint64_t step = 0;  ///< the newest on disk; 0: none
};

/// Serves until `stop` is requested (a signal that interrupts poll) or nobody is left to serve. kBusy: the folder has
/// an agent already. `ready` is called once trainers can connect.
Result<AgentEnd> run_agent(const AgentOptions& options, const Cancel& stop, const Tell& tell,
                           const std::function<void()>& ready);

}  // namespace ckpt::flash
