#include "cli/criu/log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lib/base/io.h"
#include "lib/base/text.h"

namespace ckpt::cli::criu {

Result<void> Log::open(const std::filesystem::path& file) {
  CKPT_TRY_ASSIGN(file_, io::open_file(file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW));
  return {};
}

void Log::take_stderr() const {
  if (file_) ::dup2(file_.get(), STDERR_FILENO);
}

/// One write: lines of several processes do not mix. What cannot be logged must not make the work fail.
void Log::line(int level, std::string_view text) {
  if (level > level_ || (silent_ && !file_)) return;
  const uint64_t now = watch_.elapsed_us();
  const std::string out =
      fmt::format("({:02}.{:06}) {}\n", now / 1'000'000, now % 1'000'000, escape_for_terminal(text));
  const std::lock_guard lock(mutex_);
  (void)!::write(file_ ? file_.get() : STDERR_FILENO, out.data(), out.size());
}

void Log::error(const Error& error) {
  line(1, "Error (ckpt): " + error.text());
  for (const std::string& cause : error.causes) line(1, "Error (ckpt):   " + cause);
  if (!error.target_state.empty()) line(1, "target: " + error.target_state);
  if (!error.hint.empty()) line(1, "hint: " + error.hint);
}

void Log::info(std::string_view text) { line(3, text); }

void Log::begin(std::string_view phase, uint64_t total_bytes) {
  if (level_ < 3) return;
  line(3, total_bytes == 0 ? std::string(phase) : fmt::format("{}: {}", phase, human_bytes(total_bytes)));
}

void Log::note(std::string_view text) { line(2, text); }

}  // namespace ckpt::cli::criu
