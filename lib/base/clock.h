// Time: durations are integer microseconds, wall clocks are RFC 3339 in UTC.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

namespace ckpt {

/// CLOCK_MONOTONIC in microseconds.
uint64_t monotonic_us();
/// "2026-01-31T12:00:00.123456Z"
std::string rfc3339_now();

inline timespec timespec_of(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

class Stopwatch {
 public:
  Stopwatch() : start_(monotonic_us()) {}
  uint64_t elapsed_us() const { return monotonic_us() - start_; }
  /// `monotonic_us` at the start or the last lap.
  uint64_t started_us() const { return start_; }
  /// Microseconds since the start or the last lap.
  uint64_t lap_us() {
    uint64_t now = monotonic_us(), out = now - start_;
    start_ = now;
    return out;
  }

 private:
  uint64_t start_;
};

}  // namespace ckpt
