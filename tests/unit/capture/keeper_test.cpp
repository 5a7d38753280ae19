#include "lib/capture/keeper.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <optional>
#include <thread>

using namespace ckpt;
using namespace ckpt::capture;

TEST_CASE("capture lock: one at a time, and what a killed ckpt still holds for a moment is waited for") {
  const ProcessKey key{::getpid(), 1};
  auto taken = CaptureLock::take(key);
  REQUIRE(taken);
  std::optional<CaptureLock> first(std::move(*taken));
  auto second = CaptureLock::take(key);
  REQUIRE_FALSE(second);
  CHECK(second.error().code == Code::kBusy);
  CHECK(CaptureLock::take({::getpid(), 2}));
  std::thread end([&] {
    ::usleep(50'000);
    first.reset();
  });
  CHECK(CaptureLock::take(key));
  end.join();
}
