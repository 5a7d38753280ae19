#include "lib/base/progress.h"

namespace ckpt {

namespace {
class NullProgress final : public ProgressSink {
  void begin(std::string_view, uint64_t) override {}
  void advance(uint64_t) override {}
  void note(std::string_view) override {}
};
}  // namespace

ProgressSink& null_progress() {
  static NullProgress sink;
  return sink;
}

}  // namespace ckpt
