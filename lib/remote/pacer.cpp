#include "lib/remote/pacer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <thread>

namespace ckpt::remote {

namespace {

constexpr const char* kVariable = "CKPT_URL_BANDWIDTH";

}  // namespace

Result<uint64_t> parse_bandwidth(const std::string& text) {
  constexpr std::string_view kUnits = "KMGT";
  uint64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const size_t power = unit.empty() ? 0 : kUnits.find(unit) + 1;
  const bool good = error == std::errc() && unit.size() <= 1 && (unit.empty() || power != 0) && out != 0 &&
                    out <= UINT64_MAX >> (10 * power);
  if (!good) return fail(Code::kUsage, kVariable, "is no number of bytes a second, as 100M is");
  return out << (10 * power);
}

Result<Pacer*> Pacer::of_environment() {
  static const char* const text = std::getenv(kVariable);
  static const Result<uint64_t> rate = text == nullptr || *text == '\0' ? Result<uint64_t>(0) : parse_bandwidth(text);
  if (!rate) return rate.error();
  static Pacer pacer(*rate);
  return &pacer;
}

Pacer::Clock::time_point Pacer::allowed(uint64_t bytes, Clock::time_point now) {
  std::lock_guard lock(mutex_);
  const std::chrono::duration<double> takes(static_cast<double>(bytes) / static_cast<double>(rate_));
  free_ = std::max(free_, now) + std::chrono::duration_cast<Clock::duration>(takes);
  return free_;
}

void Pacer::passed(uint64_t bytes, const Cancel* cancel) {
  if (rate_ == 0 || bytes == 0) return;
  constexpr std::chrono::milliseconds kStep{50};
  const Clock::time_point end = allowed(bytes, Clock::now());
  for (auto now = Clock::now(); now < end && (cancel == nullptr || !cancel->requested()); now = Clock::now())
    std::this_thread::sleep_for(std::min<Clock::duration>(kStep, end - now));
}

}  // namespace ckpt::remote
