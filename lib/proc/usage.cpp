#include "lib/proc/usage.h"

#include <cstdlib>
#include <string>

#include "lib/proc/procfs.h"

namespace ckpt::proc {

uint64_t read_private_pages(int pid) {
  auto statm = read_small(pid, "statm");
  if (!statm) return 0;
  char* at = nullptr;
  (void)std::strtoull(statm->c_str(), &at, 10);
  const uint64_t resident = std::strtoull(at, &at, 10), shared = std::strtoull(at, nullptr, 10);
  return resident > shared ? resident - shared : 0;
}

std::optional<uint64_t> read_time_on_processor(int pid, int tid) {
  auto schedstat = read_small(pid, "task/" + std::to_string(tid) + "/schedstat");
  if (!schedstat) return std::nullopt;
  return std::strtoull(schedstat->c_str(), nullptr, 10);
}

Usage read_usage(int pid) {
  constexpr size_t kMostThreads = 256;
  Usage out;
  if (auto stat = read_stat(pid)) out.faults = stat->minor_faults;
  auto tids = read_threads(pid);
  if (!tids || tids->size() > kMostThreads) return out;
  for (int tid : *tids) {
    auto schedstat = read_small(pid, "task/" + std::to_string(tid) + "/schedstat");
    if (!schedstat) continue;
    char* rest = nullptr;
    out.ran_us += std::strtoull(schedstat->c_str(), &rest, 10) / 1000;
    out.waited_us += std::strtoull(rest, nullptr, 10) / 1000;
  }
  return out;
}

}  // namespace ckpt::proc
