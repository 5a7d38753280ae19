// When it is to be told that images come less often than was asked for.
#pragma once

#include <cstdint>

namespace ckpt::schedule {

class StretchNews {
 public:
  /// Whether this is to be told: the first time, and again where it has become another matter, which is twice as long
  /// or half as long as was told, or after a while without. 0: they come as often as was asked for.
  bool is_news(uint64_t apart_us) {
    const bool is_same = apart_us != 0 && told_us_ != 0 && apart_us / 2 < told_us_ && told_us_ / 2 < apart_us;
    if (!is_same) told_us_ = apart_us;
    return !is_same && apart_us != 0;
  }

 private:
  uint64_t told_us_ = 0;
};

}  // namespace ckpt::schedule
