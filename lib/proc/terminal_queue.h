// What waits inside of a pseudo-terminal: bytes typed and not read yet, output that the master has not taken.
//
// The kernel has no way to look at these without taking them out, so they are taken and put back at once, by a helper
// process with all signals blocked that finishes its work even if ckpt is killed meanwhile. Nobody may use the terminal
// in this time: every process that has it open is frozen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

struct TerminalQueues {
  struct Line {
    std::vector<uint8_t> bytes;
    bool marked = false;  ///< ended by the end-of-file character, which is not among the bytes
  };
  enum class Stop { kNone, kCharacter, kCall };
  std::vector<Line> lines;     ///< canonical mode: whole lines
  std::vector<uint8_t> typed;  ///< the rest, or everything outside of canonical mode
  std::vector<uint8_t> output;
  Stop stop = Stop::kNone;  ///< of the output
};

/// Whether input can be put back once it has been read (TIOCSTI).
bool may_type();

/// Reads the queues and leaves them as they were. `slave` -1: nobody has it open; then only the output is found.
/// `users`: every open description of the terminal, so that none gets SIGIO for this. kPermission, and nothing is read:
/// some could not be put back; kBusy: a status of packet mode waits, which nobody could put back; kTargetAltered:
/// something could not be put back.
Result<TerminalQueues> copy_terminal_queues(int master, int slave, const std::vector<int>& users,
                                            const std::string& subject);

/// Fills the empty queues of a terminal whose settings are already the final ones, packet mode apart, which must be
/// off. `slave` -1: only output, which must then fit into one buffer (4095 bytes).
Result<void> fill_terminal_queues(int master, int slave, const TerminalQueues& queues, const std::string& subject);

}  // namespace ckpt::proc
