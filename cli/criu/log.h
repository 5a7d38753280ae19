// The log of a run in criu's place: lines with the time since its start, in a file or on standard error.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

#include "lib/base/clock.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::cli::criu {

/// Thread-safe. Errors have "Error" in their line: container runtimes look for it and show such lines to their users.
class Log final : public ProgressSink {
 public:
  /// To standard error, unless told otherwise. `level`: 1: errors, 2: notes as well, 3: what is done as well.
  explicit Log(int level) : level_(level) {}

  /// Goes on in `file`, which is made anew (0600; no link is followed).
  Result<void> open(const std::filesystem::path& file);
  void set_level(int level) { level_ = level; }
  /// Where there is a file, standard error leads there, too.
  void take_stderr() const;
  /// Standard error belongs to somebody else: without a file nothing is written.
  void keep_off_stderr() { silent_ = true; }

  void error(const Error& error);
  void info(std::string_view text);

  void begin(std::string_view phase, uint64_t total_bytes) override;
  void advance(uint64_t) override {}
  void note(std::string_view text) override;

 private:
  void line(int level, std::string_view text);

  int level_;
  bool silent_ = false;
  std::mutex mutex_;
  Stopwatch watch_;
  UniqueFd file_;
};

}  // namespace ckpt::cli::criu
