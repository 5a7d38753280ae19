// When the next save is due, and how long to wait before trying again. Times are microseconds of any clock that does
// not go back; the caller reads it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace ckpt::schedule {

/// A save every so often, from the beginning of one to the beginning of the next. One that takes longer than the period
/// is followed by the next at once, and those that were missed are not made up for.
class SaveTimer {
 public:
  /// The first one is due after one period. `period_us` 0: none ever is.
  SaveTimer(uint64_t period_us, uint64_t now_us) : period_us_(period_us), due_us_(now_us + period_us) {}

  bool is_due(uint64_t now_us) const { return wait_us(now_us) == 0; }
  /// Nothing: never.
  std::optional<uint64_t> wait_us(uint64_t now_us) const {
    if (period_us_ == 0) return std::nullopt;
    const uint64_t at = std::max(due_us_, not_before_us_);
    return now_us >= at ? 0 : at - now_us;
  }
  /// A save has begun.
  void begun(uint64_t now_us) {
    const uint64_t missed = period_us_ > 0 && now_us > due_us_ ? (now_us - due_us_) / period_us_ : 0;
    due_us_ += period_us_ * (missed + 1);
  }
  uint64_t period_us() const { return period_us_; }
  /// Another period from now on.
  void set_period(uint64_t period_us, uint64_t now_us) { period_us_ = period_us, due_us_ = now_us + period_us; }
  /// None is due before that time, whatever the period; until the next call.
  void not_before(uint64_t us) { not_before_us_ = us; }

 private:
  uint64_t period_us_, due_us_, not_before_us_ = 0;
};

/// Attempts in a row without progress between them: each waits twice as long as the one before.
class Backoff {
 public:
  Backoff(uint64_t most, uint64_t first_us, uint64_t longest_us)
      : most_(most), first_us_(first_us), longest_us_(longest_us) {}

  /// How long to wait before the next attempt. Nothing: there have been as many as there may be.
  std::optional<uint64_t> next_us() {
    if (made_ >= most_) return std::nullopt;
    const uint64_t doubled = made_ < 40 ? first_us_ << made_ : longest_us_;
    ++made_;
    return std::min(doubled, longest_us_);
  }
  void progress() { made_ = 0; }
  uint64_t made() const { return made_; }

 private:
  uint64_t most_, first_us_, longest_us_, made_ = 0;
};

}  // namespace ckpt::schedule
