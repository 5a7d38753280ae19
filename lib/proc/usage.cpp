#include "lib/proc/usage.h"

#include <cstdlib>
#include <string>

#include "lib/proc/procfs.h"

namespace ckpt::proc {

namespace {

/// Member `number` (as proc(5) counts) of /proc/PID/stat: 10 is minflt. Counted from the end of the name, which may hold anything.
uint64_t stat_member(const std::string& text, int number) {
  size_t at = text.rfind(')');
  for (int i = 2; i < number && at != std::string::npos; ++i) at = text.find(' ', at + 1);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

}  // namespace

uint64_t minor_faults(int pid) {
  constexpr int kMinorFaults = 10;
  auto stat = read_small(pid, "stat");
  return stat ? stat_member(*stat, kMinorFaults) : 0;
}

uint64_t read_private_pages(int pid) {
  auto statm = read_small(pid, "statm");
  if (!statm) return 0;
  char* at = nullptr;
  (void)std::strtoull(statm->c_str(), &at, 10);
  const uint64_t resident = std::strtoull(at, &at, 10), shared = std::strtoull(at, nullptr, 10);
  return resident > shared ? resident - shared : 0;
}

bool has_pinned_pages(int pid) {
  auto status = read_small(pid, "status");
  const size_t at = status ? status->find("\nVmPin:") : std::string::npos;
  return at != std::string::npos && std::strtoull(status->c_str() + at + 7, nullptr, 10) != 0;
}

Usage read_usage(int pid) {
  constexpr size_t kMostThreads = 256;
  Usage out;
  out.faults = minor_faults(pid);
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
