// The two streams: stdout carries data, everything else goes to stderr. Text from files is escaped here, at the edge.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cli/progress.h"
#include "lib/base/progress.h"
#include "lib/base/result.h"

namespace ckpt::cli {

/// The global options, known after parsing.
struct GlobalOptions {
  bool json = false;
  std::string progress = "auto";  ///< auto, tty, plain, jsonl, none
  std::string color = "auto";     ///< auto, always, never
  bool quiet = false;
};

class Console {
 public:
  /// `progress`, where there is one, makes way for what is printed.
  explicit Console(const GlobalOptions& options, Progress* progress = nullptr)
      : options_(options), progress_(progress) {}

  bool json() const { return options_.json; }
  /// Data to stdout, as it is. Once nobody reads it (a closed pipe) it is dropped, and the verb ends as it would have;
  /// any other failure is kept for `finish`.
  void data(std::string_view text);
  /// True once stdout was found closed: a verb that only prints can stop.
  bool closed() const;
  /// A line of information to stderr (nothing under --quiet); with --json and --progress jsonl a JSON line.
  void info(std::string_view line);
  /// Such a line that begins with a verdict, "damaged: ...", which a terminal shows in colour.
  void verdict(const std::string& line);
  /// Rows of cells, padded to columns; cells are escaped here. `right`: columns that hold numbers. Those named STATE,
  /// HERE, KIND or VERDICT hold verdicts.
  void table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
             const std::vector<size_t>& right = {});
  /// Such rows as lines of information.
  void info_table(const std::vector<std::vector<std::string>>& rows);
  bool color(std::FILE* stream) const;
  /// Flushes stdout; the first failure since the start, unless it was a closed pipe.
  Result<void> finish();

 private:
  const GlobalOptions& options_;
  Progress* progress_;
  int error_ = 0;  ///< errno of the first failed write to stdout
};

/// The final error: for people three parts (what, state of the target, hint), with --json one JSON line on stderr.
void report_error(const Error& error, const GlobalOptions& options);

}  // namespace ckpt::cli
