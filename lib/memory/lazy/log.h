// Where a process that has no terminal says what an operator must know.
#pragma once

#include <filesystem>
#include <string_view>

#include "lib/base/result.h"
#include "lib/base/task_fate.h"
#include "lib/base/unique_fd.h"

namespace ckpt::restore {

/// A file that is appended to, the standard error of a ckpt that stays, or else the system log. Writing takes no lock
/// and no memory: any process that has the descriptor may, in any state.
class LazyPagesLog {
 public:
  enum class Level { kProblem, kNote };
  /// `file` empty: standard error if `foreground`, else syslog, or nothing where there is none. `fate`: hears of a
  /// problem, too; may be null.
  static Result<LazyPagesLog> open(const std::filesystem::path& file, bool foreground, TaskFate* fate);

  /// A note goes into a file only.
  void write(Level level, std::string_view text) const;
  int descriptor() const { return fd_.get(); }
  TaskFate* fate() const { return fate_; }

 private:
  enum class Kind { kNone, kFile, kStandardError, kSystem };
  Kind kind_ = Kind::kNone;
  UniqueFd fd_;
  TaskFate* fate_ = nullptr;
};

}  // namespace ckpt::restore
