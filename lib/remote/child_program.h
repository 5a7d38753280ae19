// A program that works for ckpt: content in, content out, without a shell.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::remote {

struct ProgramCall {
  std::vector<std::string> words;  ///< the program, found by PATH, and its arguments
  ByteSpan input;                  ///< a file that it has as stdin: all of it is there whatever becomes of ckpt
  int input_file = -1;             ///< that file, where there is one already: borrowed, read from its beginning
  uint64_t silence_s = 300;        ///< how long it may neither write nor read nor end
  bool to_the_end = false;  ///< kIo where something that it has started still has its stdout: more was to come, perhaps
  /// What it writes to stdout, piece by piece; an error ends it.
  std::function<Result<void>(ByteSpan)> output;
};

struct ProgramEnd {
  int status = 0;     ///< what it exited with; 128 and the signal that ended it
  std::string said;  ///< the end of what it wrote to stderr, on one line
};

/// Runs it, in a process group of its own, all of which is killed where this process ends, or the call fails: the
/// program cannot be started (kUnsupported), was silent for too long (kIo), `output` refused, or `cancel` (null: nobody
/// interrupts).
Result<ProgramEnd> run_program(const ProgramCall& call, const Cancel* cancel);

}  // namespace ckpt::remote
