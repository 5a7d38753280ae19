#include "lib/schedule/retention.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/schedule/timer.h"

using namespace ckpt::schedule;

namespace {

using Names = std::vector<std::string>;

/// `count` saves, one an hour from midnight on; `chained`: each needs the one before.
std::vector<KnownSave> hourly(int count, bool chained = false) {
  std::vector<KnownSave> out;
  for (int i = 1; i <= count; ++i) {
    const int hour = i - 1;
    out.push_back({fmt::format("{:08}", i), fmt::format("2026-03-{:02}T{:02}:00:00.000000Z", 1 + hour / 24, hour % 24),
                   chained && i > 1 ? fmt::format("{:08}", i - 1) : "", static_cast<uint64_t>(i)});
  }
  return out;
}

}  // namespace

TEST_CASE("retention: without a rule everything stays") {
  CHECK(superfluous(hourly(5), {}).empty());
  CHECK(superfluous({}, {.keep_last = 3}).empty());
}

TEST_CASE("retention: the last ones, every so many, the last of a day") {
  CHECK(superfluous(hourly(5), {.keep_last = 2}) == Names{"00000001", "00000002", "00000003"});
  CHECK(superfluous(hourly(5), {.keep_last = 9}).empty());
  CHECK(superfluous(hourly(6), {.keep_every = 3}) == Names{"00000001", "00000002", "00000004", "00000005"});
  // 50 hours: two whole days (numbers 24 and 48 are their last ones) and two hours of a third.
  const Names gone = superfluous(hourly(50), {.keep_daily = 2});
  CHECK(gone.size() == 48);
  CHECK(std::find(gone.begin(), gone.end(), "00000048") == gone.end());
  CHECK(std::find(gone.begin(), gone.end(), "00000050") == gone.end());
  CHECK(std::find(gone.begin(), gone.end(), "00000024") != gone.end());
  CHECK(superfluous(hourly(6), {.keep_last = 2, .keep_every = 4}) == Names{"00000001", "00000002", "00000003"});
}

TEST_CASE("retention: the newest stays whatever the rules say") {
  CHECK(superfluous(hourly(5), {.keep_every = 100}) == Names{"00000001", "00000002", "00000003", "00000004"});
  // By time and not by number: a folder may have been copied together.
  auto saves = hourly(2);
  std::swap(saves[0].created, saves[1].created);
  CHECK(superfluous(saves, {.keep_last = 1}) == Names{"00000002"});
}

TEST_CASE("retention: what a kept one needs stays") {
  CHECK(superfluous(hourly(5, true), {.keep_last = 1}).empty());
  auto saves = hourly(6, true);
  saves[3].parent.clear();  // 4 is a full one: 5 and 6 lean on it
  CHECK(superfluous(saves, {.keep_last = 1}) == Names{"00000001", "00000002", "00000003"});
  CHECK(superfluous(saves, {.keep_last = 1, .keep_every = 2}) == Names{"00000003"});
}

TEST_CASE("retention: parents that are elsewhere, or go round in a circle, end the chain") {
  auto saves = hourly(3, true);
  saves[0].parent = "00000003";
  CHECK(superfluous(saves, {.keep_last = 1}).empty());
  CHECK(chain_length(saves, "00000003") == 3);
  saves[0].parent = "gone";
  CHECK(chain_length(saves, "00000003") == 3);
  CHECK(superfluous(saves, {.keep_last = 1}).empty());
  CHECK(chain_length(saves, "nothing") == 0);
}

TEST_CASE("retention: the next name") {
  CHECK(next_name({}) == "00000001");
  CHECK(next_name({"00000009", "00000010", "README", "00000002"}) == "00000011");
  CHECK(next_name({"99999999"}) == "100000000");
}

TEST_CASE("timer: from beginning to beginning, nothing is made up for") {
  SaveTimer timer(100, 1000);
  CHECK_FALSE(timer.is_due(1099));
  CHECK(timer.wait_us(1040) == 60);
  CHECK(timer.is_due(1100));
  timer.begun(1103);
  CHECK(timer.wait_us(1103) == 97);
  timer.begun(1450);  // those of 1200, 1300 and 1400 were missed
  CHECK(timer.wait_us(1450) == 50);
  timer.set_period(10, 2000);
  CHECK(timer.wait_us(2000) == 10);
  timer.not_before(2035);
  CHECK_FALSE(timer.is_due(2034));
  CHECK(timer.wait_us(2012) == 23);
  CHECK(timer.is_due(2035));
  timer.begun(2035);  // those of 2020 and 2030 were missed
  CHECK(timer.wait_us(2035) == 5);
  timer.not_before(2036);
  CHECK(timer.wait_us(2036) == 4);
  CHECK_FALSE(SaveTimer(0, 5).is_due(1'000'000));
  CHECK_FALSE(SaveTimer(0, 5).wait_us(7).has_value());
}

TEST_CASE("back-off: twice as long each time, a limit, and progress") {
  Backoff backoff(4, 10, 35);
  CHECK(backoff.next_us() == 10);
  CHECK(backoff.next_us() == 20);
  CHECK(backoff.next_us() == 35);
  CHECK(backoff.next_us() == 35);
  CHECK_FALSE(backoff.next_us().has_value());
  backoff.progress();
  CHECK(backoff.next_us() == 10);
  CHECK_FALSE(Backoff(0, 1, 1).next_us().has_value());
}

TEST_CASE("retention: by number the newest is the last one that was made, though the clock was set back before it") {
  std::vector<KnownSave> saves = hourly(3);
  saves.push_back({"00000004", "2000-01-01T00:00:00Z", "", 4});
  CHECK(superfluous(saves, {.keep_last = 1}, Order::kNumber) == Names{"00000001", "00000002", "00000003"});
  CHECK(superfluous(saves, {.keep_last = 1}) == Names{"00000004", "00000001", "00000002"});
}
