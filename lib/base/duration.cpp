#include "lib/base/duration.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

namespace ckpt {

namespace {

constexpr double kSecond = 1e6;
constexpr double kMost = 1000 * 365.25 * 86400 * kSecond;

struct Unit {
  std::string_view name;
  double us;
};
constexpr std::array<Unit, 7> kUnits = {{{"us", 1},
                                         {"ms", 1e3},
                                         {"s", kSecond},
                                         {"m", 60 * kSecond},
                                         {"h", 3600 * kSecond},
                                         {"d", 86400 * kSecond},
                                         {"w", 7 * 86400 * kSecond}}};

Error not_one(std::string_view text, const std::string& subject) {
  return Error(Code::kUsage, subject, fmt::format("'{}' is not a duration", text))
      .with_hint("a duration is 30s, 1.5h, 1h30m, 200ms or 50d");
}

}  // namespace

Result<uint64_t> parse_duration(std::string_view text, const std::string& subject) {
  double sum = 0;
  bool is_first = true;
  std::string_view rest = text;
  if (rest.empty()) return not_one(text, subject);
  while (!rest.empty()) {
    double number = 0;
    auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number, std::chars_format::fixed);
    if (error != std::errc() || rest[0] == '-' || !std::isfinite(number)) return not_one(text, subject);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    const std::string_view name = rest.substr(0, rest.find_first_of("0123456789."));
    const Unit* unit = nullptr;
    for (const Unit& known : kUnits) {
      if (known.name == name) unit = &known;
    }
    if (name.empty() && is_first) unit = &kUnits[2];
    if (unit == nullptr) return not_one(text, subject);
    sum += number * unit->us;
    rest.remove_prefix(name.size());
    is_first = false;
  }
  if (sum > kMost) return fail(Code::kUsage, subject, fmt::format("'{}' is more than a thousand years", text));
  return static_cast<uint64_t>(std::llround(sum));
}

std::string format_duration(uint64_t us) {
  if (us < 1'000) return fmt::format("{}us", us);
  // Rounded first, so that 59.97 s becomes 1m and not 60s.
  if (us < 999'500) return fmt::format("{:.3g}ms", static_cast<double>(us) / 1e3);
  if (us < 59'950'000) return fmt::format("{:.3g}s", static_cast<double>(us) / kSecond);
  uint64_t seconds = (us + 500'000) / 1'000'000;
  auto two = [](uint64_t large, const char* a, uint64_t small, const char* b) {
    return small == 0 ? fmt::format("{}{}", large, a) : fmt::format("{}{}{}{}", large, a, small, b);
  };
  if (seconds < 3600) return two(seconds / 60, "m", seconds % 60, "s");
  const uint64_t minutes = (seconds + 30) / 60;
  if (minutes < 24 * 60) return two(minutes / 60, "h", minutes % 60, "m");
  const uint64_t hours = (minutes + 30) / 60;
  return two(hours / 24, "d", hours % 24, "h");
}

}  // namespace ckpt
