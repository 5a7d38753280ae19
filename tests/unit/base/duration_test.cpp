#include "lib/base/duration.h"

#include <doctest/doctest.h>

using namespace ckpt;

TEST_CASE("durations are read as people write them") {
  CHECK(parse_duration("30", "x").value() == 30'000'000);
  CHECK(parse_duration("0.2s", "x").value() == 200'000);
  CHECK(parse_duration("200ms", "x").value() == 200'000);
  CHECK(parse_duration("15us", "x").value() == 15);
  CHECK(parse_duration("1h30m", "x").value() == 5'400'000'000);
  CHECK(parse_duration("50d", "x").value() == uint64_t{50} * 86'400'000'000);
  CHECK(parse_duration("1w", "x").value() == parse_duration("7d", "x").value());
  CHECK(parse_duration("0", "x").value() == 0);
}

TEST_CASE("durations: what is none is refused and named") {
  for (const char* wrong :
       {"", "s", "3x", "-3s", "3 s", "1h30", "1e3s", "nan", "inf", "0x10s", "3s-", "1h-3m", "1001w1h2"}) {
    auto result = parse_duration(wrong, "--every");
    CHECK_MESSAGE(!result.has_value(), wrong);
    CHECK(result.error().code == Code::kUsage);
    CHECK(result.error().subject == "--every");
  }
  CHECK(parse_duration("1e300", "x").has_value() == false);
  CHECK(parse_duration("99999999w", "x").error().message.find("thousand years") != std::string::npos);
}

TEST_CASE("durations are printed so that they are read again") {
  CHECK(format_duration(0) == "0us");
  CHECK(format_duration(200'000) == "200ms");
  CHECK(format_duration(65'600'000) == "1m6s");
  CHECK(format_duration(59'960'000) == "1m");
  CHECK(format_duration(999'600) == "1s");
  CHECK(format_duration(5'400'000'000) == "1h30m");
  CHECK(format_duration(3'599'700'000) == "1h");
  CHECK(format_duration(uint64_t{50} * 86'400'000'000) == "50d");
  for (uint64_t us : {1ull, 999ull, 12'345ull, 1'234'567ull, 61'000'000ull, 5'000'000'000ull, 7'777'777'777'777ull}) {
    const double again = static_cast<double>(parse_duration(format_duration(us), "x").value());
    CHECK(again == doctest::Approx(static_cast<double>(us)).epsilon(0.02));
  }
}
