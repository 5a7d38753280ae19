// Progress on stderr: one overwriting line on a terminal, plain lines or JSON lines elsewhere, one line on SIGUSR1.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/progress.h"

namespace ckpt::cli {

/// Where a phase stands.
struct PhaseState {
  std::string phase;
  uint64_t done = 0, total = 0;  ///< bytes; total 0: not known
  uint64_t elapsed_us = 0;       ///< since the phase began
  uint64_t recent_bytes = 0,
           recent_us = 0;  ///< done in the last seconds; recent_us 0: not known, the mean since the beginning counts
};

/// "copy  1.20 GiB of 4.00 GiB  30%  812 MiB/s  4 s left", escaped. What does not fit into `columns` is left out: the
/// rate, then the total, the bytes, the time left; a phase that is still too long is cut.
std::string progress_text(const PhaseState& state, size_t columns = SIZE_MAX);
/// At most `columns` characters; a cut one ends in "...".
std::string elide(const std::string& text, size_t columns);

/// Counting is lock-free; one thread of its own (every signal blocked) does the printing, from the first phase on.
class Progress final : public ProgressSink {
 public:
  enum class Form {
    kSilent,  ///< notes alone
    kLine,    ///< from 250 ms on, at most 10 times a second
    kPlain,   ///< a line every 10 s
    kJson,    ///< a line when a phase begins and every second
  };

  Progress(Form form, bool notes, std::FILE* stream) : form_(form), notes_(notes), stream_(stream) {}
  ~Progress() override { finish(); }

  void begin(std::string_view phase, uint64_t total_bytes) override;
  void advance(uint64_t bytes) override { done_.fetch_add(bytes, std::memory_order_relaxed); }
  void note(std::string_view text) override;

  /// Takes the line off the terminal, so that something else can be printed; it comes back with the next progress.
  void hide();
  /// Ends the thread and takes the line away.
  void finish();

  /// What --progress asks for: auto is a line on a terminal that can erase one, and plain elsewhere.
  static Form form_of(const std::string& option, std::FILE* stream);
  /// Async-signal-safe: the next tick prints one line.
  static void request_line();

 private:
  void run();
  void tick();
  void print(const std::string& line);
  void erase();
  PhaseState state() const;
  void remember();

  const Form form_;
  const bool notes_;
  std::FILE* const stream_;
  std::atomic<uint64_t> done_{0};

  std::mutex mutex_;  ///< guards all below, and the stream
  std::condition_variable stop_;
  std::thread thread_;
  bool stopping_ = false;
  std::string phase_;
  uint64_t total_ = 0;
  uint64_t first_us_ = 0, begun_us_ = 0, printed_us_ = 0;
  bool shown_ = false;
  bool hidden_ = false;
  std::deque<std::pair<uint64_t, uint64_t>> seen_;  ///< time and bytes done, of the last seconds of this phase
  uint64_t hidden_at_ = 0;  ///< bytes done when the line was hidden
};

}  // namespace ckpt::cli
