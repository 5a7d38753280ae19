// A progress sink that keeps what it is told.
#pragma once

#include <string>
#include <string_view>

#include "lib/base/progress.h"

namespace ckpt::test {

class Notes final : public ProgressSink {
 public:
  void begin(std::string_view, uint64_t) override {}
  void advance(uint64_t) override {}
  void note(std::string_view text) override { all += std::string(text) + "\n"; }
  std::string all;
};

}  // namespace ckpt::test
