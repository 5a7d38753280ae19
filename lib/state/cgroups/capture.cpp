#include "lib/state/cgroups/capture.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/io.h"

namespace ckpt::capture {

Result<std::vector<store::Cgroup>> parse_cgroups(std::string_view text) {
  std::vector<store::Cgroup> out;
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    size_t first = line.find(':'), second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos || second + 1 >= line.size() || line[second + 1] != '/')
      return fail(Code::kIo, "cgroup", fmt::format("\"{}\" is not in the form that this ckpt knows", line));
    out.push_back({std::string(line.substr(first + 1, second - first - 1)), std::string(line.substr(second + 1))});
  }
  return out;
}

Result<std::vector<store::Cgroup>> read_cgroups(int pid, int tid) {
  constexpr uint64_t kLimit = 1 << 20;
  CKPT_TRY_ASSIGN(std::string text, io::read_file(fmt::format("/proc/{}/task/{}/cgroup", pid, tid), kLimit));
  return parse_cgroups(text);
}

}  // namespace ckpt::capture
