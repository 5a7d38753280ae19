// Handlers and queued signals of a stopped process.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"
#include "lib/proc/procfs.h"
#include "lib/state/signals/record.h"

namespace ckpt::capture {

/// From proc::peek_signals.
std::vector<store::QueuedSignal> queued_signals(const std::vector<std::array<uint8_t, 128>>& queue);
bool has_signal(const std::vector<store::QueuedSignal>& queue, int signo);

/// The actions of a process, asked of a thread of it.
class ActionQuestions {
 public:
  ActionQuestions(proc::CallList& calls, const proc::Status& status);
  /// Those that differ from the default.
  Result<std::vector<store::SignalAction>> take(const proc::CallList& calls) const;

 private:
  std::vector<std::pair<int, size_t>> calls_;  ///< signal, call
};

}  // namespace ckpt::capture
