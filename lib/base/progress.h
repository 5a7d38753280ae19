// How long work reports itself. The library counts; only cli/ knows whether a terminal listens.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckpt {

/// Thread-safe. Implemented by cli/progress; `null_progress()` ignores everything.
class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  /// A phase begins: "copy", "hash". total_bytes 0: not known.
  virtual void begin(std::string_view phase, uint64_t total_bytes) = 0;
  /// More bytes of the current phase are done.
  virtual void advance(uint64_t bytes) = 0;
  /// Something a person should know that is not an error. One line, unescaped.
  virtual void note(std::string_view text) = 0;
};

ProgressSink& null_progress();

}  // namespace ckpt
