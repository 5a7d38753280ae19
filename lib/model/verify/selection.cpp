#include "lib/model/verify/selection.h"

#include <algorithm>
#include <numeric>

namespace ckpt::model {

namespace {

/// splitmix64: what unit `index` draws.
uint64_t draw(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<size_t> select_units(const std::vector<uint64_t>& sizes, const Selection& selection) {
  std::vector<size_t> chosen(sizes.size());
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  if (selection.percent) {
    const double limit = *selection.percent / 100 * 0x1p64;
    std::erase_if(chosen, [&](size_t i) { return static_cast<double>(draw(selection.seed, i)) >= limit; });
  }
  if (selection.count && *selection.count < chosen.size()) {
    const auto middle = chosen.begin() + static_cast<ptrdiff_t>(*selection.count);
    std::nth_element(chosen.begin(), middle, chosen.end(),
                     [&](size_t a, size_t b) { return draw(selection.seed, a) < draw(selection.seed, b); });
    chosen.erase(middle, chosen.end());
    std::sort(chosen.begin(), chosen.end());
  }
  // A unit without bytes costs something, too.
  auto weight = [&](size_t i) { return static_cast<double>(sizes[i]) + 1; };
  double total = 0, before = 0;
  for (size_t i : chosen) total += weight(i);
  std::vector<size_t> out;
  for (size_t i : chosen) {
    // By its middle, so that no rounding puts a unit into two parts or none.
    const double middle = (before + weight(i) / 2) / total * static_cast<double>(selection.parts);
    if (std::min(static_cast<uint64_t>(middle), selection.parts - 1) == selection.part - 1) out.push_back(i);
    before += weight(i);
  }
  return out;
}

}  // namespace ckpt::model
