// No more bytes a second than somebody allows, over all exchanges of a process together.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "lib/base/cancel.h"
#include "lib/base/result.h"

namespace ckpt::remote {

/// Bytes a second in digits, with K, M, G or T behind them for powers of 1024: "100M". kUsage: it is none, or 0.
Result<uint64_t> parse_bandwidth(const std::string& text);

/// Thread-safe.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  /// 0: no limit.
  explicit Pacer(uint64_t bytes_per_second) : rate_(bytes_per_second) {}
  /// Of CKPT_URL_BANDWIDTH, read once. kUsage: what it says is no bandwidth.
  static Result<Pacer*> of_environment();

  bool limits() const { return rate_ != 0; }
  /// Counts bytes that have passed, and waits until they were allowed to; less where a stop is requested.
  void passed(uint64_t bytes, const Cancel* cancel);
  /// The same without waiting: when they were allowed to. What was not used is not saved up.
  Clock::time_point allowed(uint64_t bytes, Clock::time_point now);

 private:
  const uint64_t rate_;
  std::mutex mutex_;
  Clock::time_point free_{};  ///< when all that has passed by now was allowed to
};

}  // namespace ckpt::remote
