// The two streams: stdout carries data, everything else goes to stderr. Text from files is escaped here, at the edge.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

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
  explicit Console(const GlobalOptions& options) : options_(options) {}

  bool json() const { return options_.json; }
  /// Data to stdout, as it is. A closed pipe ends the program quietly.
  void data(std::string_view text);
  /// A line of information to stderr (nothing under --quiet).
  void info(std::string_view line);
  /// Rows of cells, padded to columns; cells are escaped here. `right`: columns that hold numbers.
  void table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
             const std::vector<size_t>& right = {});
  bool color(std::FILE* stream) const;

 private:
  const GlobalOptions& options_;
};

/// The final error: for people three parts (what, state of the target, hint), with --json one JSON line on stderr.
void report_error(const Error& error, const GlobalOptions& options);

}  // namespace ckpt::cli
