#include "cli/suggest.h"

#include <algorithm>

namespace ckpt::cli {

namespace {

constexpr size_t kLongest = 64;  // no name is longer, and the table is as large as the product of both

size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > kLongest) return "";
  std::string best;
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  std::vector<std::string> longer;
  for (const std::string& candidate : candidates) {
    if (word.size() > 1 && candidate.starts_with(word)) longer.push_back(candidate);
    const size_t errors = distance(word, candidate);
    if (errors >= least || errors >= word.size()) continue;
    least = errors;
    best = candidate;
  }
  return best.empty() && longer.size() == 1 ? longer[0] : best;
}

}  // namespace ckpt::cli
