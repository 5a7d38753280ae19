#include "lib/flash/heartbeat.h"

#include <doctest/doctest.h>

#include <memory>

#include "lib/base/io.h"
#include "tests/support/temp_dir.h"

using namespace ckpt;
using namespace ckpt::flash;

TEST_CASE("heartbeat: who falls silent is lost, but not who had finished before") {
  test::TempDir dir;
  Cancel outer;
  auto agent = [&](uint32_t number) {
    auto out = std::make_unique<Heartbeat>(dir.path, number, 200'000, "written-", outer);
    REQUIRE(out->begin());
    return out;
  };
  auto mine = agent(0), first = agent(3), second = agent(5);
  REQUIRE(io::write_file(dir.path / "written-3", ""));
  mine->watch({0, 3, 5, 7});  // oneself is not watched; of 7 nothing was heard at all
  REQUIRE(io::write_file(dir.path / "written-7", ""));
  first.reset();
  second.reset();
  while (!mine->stop().requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto checked = mine->check();
  REQUIRE_FALSE(checked);
  CHECK(checked.error().code == Code::kMismatch);
  CHECK(checked.error().message.find("the agent of rank 5 is lost: nothing was heard of it for 200") == 0);
}

TEST_CASE("heartbeat: an interruption reaches whoever asks") {
  test::TempDir dir;
  Cancel outer;
  Heartbeat mine(dir.path, 0, 3'600'000'000, "", outer);
  REQUIRE(mine.begin());
  CHECK(mine.check());
  outer.request();
  while (!mine.stop().requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(mine.check().error().code == Code::kInterrupted);
  mine.end();
  CHECK_FALSE(Heartbeat(dir.path / "none", 0, 1'000'000, "", outer).begin());
}
