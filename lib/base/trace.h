// A timeline of what each thread did: spans, instants and counters, written as a Chrome trace (opens in Perfetto).
// tests/cli/trace.py says what a verb's has to hold.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lib/base/clock.h"
#include "lib/base/result.h"

namespace ckpt::trace {

namespace internal {
inline std::atomic<bool> g_on{false};
uint64_t now_ns();
}  // namespace internal

/// Whether a timeline is recorded. While it is not, everything below costs one relaxed load.
inline bool on() { return internal::g_on.load(std::memory_order_relaxed); }

// Names and labels are kept as pointers: string literals, or what `kept` gave. Recording takes no lock and no memory
// but for a thread's first event, which gets the thread its buffer; what no longer fits in that is counted and dropped.

/// A name that is known only when ckpt runs (a file, a tensor), to be used for spans of this recording; "" while
/// nothing is recorded. Takes a lock, and memory for each name once.
const char* kept(std::string_view name);

/// From here to the end of the scope, on the row of the calling thread.
class Span {
 public:
  explicit Span(const char* name)
      : name_(on() ? name : nullptr), begin_ns_(name_ != nullptr ? internal::now_ns() : 0) {}
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  ~Span() { end(); }

  /// An argument shown with the span; the last one counts.
  void set(const char* label, uint64_t value) { label_ = label, value_ = value; }
  void bytes(uint64_t value) { set("bytes", value); }
  /// Earlier than the scope's end; once is enough.
  void end();

 private:
  const char* name_;
  uint64_t begin_ns_;
  const char* label_ = nullptr;
  uint64_t value_ = 0;
};

/// Rows that belong to no thread of ckpt's.
enum class Row : uint8_t {
  kThread,  ///< the calling thread's own
  kPhases,  ///< the phases of the verb, one after the other
  kTarget,  ///< when the target stood still
};

/// A span that is known only once it is over; times of `monotonic_us`.
void interval(Row row, const char* name, uint64_t begin_us, uint64_t end_us);
/// A lap of `watch` is a phase: its microseconds, for the report.
uint64_t phase(Stopwatch& watch, const char* name);
void instant(const char* name);
/// What is counted now, in `unit`, which is shown beside it.
void counter(const char* name, const char* unit, uint64_t value);
/// Adds to a counter that begins at 0 and is shown as its sum over all threads. What a thread adds within some
/// milliseconds is one event.
void add(const char* name, const char* unit, uint64_t more);
/// The sums that `io` and the copying of memory keep.
inline constexpr const char kRead[] = "read", kWritten[] = "written", kBytes[] = "bytes";

/// Names the calling thread's row. Threads of one name that follow each other share a row: "worker 1", "worker 2", ...
void name_thread(const char* name);
/// Gives the calling thread its buffer now, so that it need not be made where time matters.
void prepare_thread();

/// From `start` to `write` everything is recorded. One at a time in a process, started and ended while no other thread
/// records.
class Recording {
 public:
  /// Refuses (kUsage, kNotFound, kPermission) a path that could not be written to later, or is there and is no regular
  /// file.
  static Result<Recording> start(const std::filesystem::path& path, std::string process_name);
  Recording(Recording&& other) noexcept;
  Recording& operator=(Recording&&) = delete;
  /// Ends the recording; without `write` there is no file.
  ~Recording();

  /// The file appears complete under its name (0600, replaced if it was there), or not at all. Not synced.
  Result<void> write();

 private:
  Recording(std::filesystem::path path, std::string process_name);

  std::filesystem::path path_;
  std::string process_name_;
  uint64_t begin_ns_ = 0;
  bool active_ = true;
};

}  // namespace ckpt::trace
