#include "lib/engine/downtime.h"

#include <sys/stat.h>

#include <algorithm>

#include "lib/base/worker_pool.h"
#include "lib/proc/procfs.h"
#include "lib/proc/usage.h"

namespace ckpt::engine {

namespace {

// Seen on two cores of a virtual machine (kernel 6.18); tests/bench/process measures them anew.
constexpr uint64_t kReadRate = 1500;         ///< bytes a microsecond that one worker reads, of pages here and there
constexpr uint64_t kForkUsPerMib = 28;       ///< copying page tables, and the protection of both copies
constexpr uint64_t kForkUs = 400;            ///< with the stop that ends it
constexpr uint64_t kForkNsPerMap = 2500;     ///< a VMA and its place in the tree of them
constexpr uint64_t kProcessUs = 1000, kThreadUs = 40, kMapUs = 1, kDescriptorUs = 15;  ///< describing them
constexpr uint64_t kMib = uint64_t{1} << 20;

}  // namespace

uint64_t Downtime::private_bytes() const {
  uint64_t pages = 0;
  for (const store::ProcessImage& image : running_.image.processes) {
    if (!image.zombie && image.memory_of < 0) pages += proc::read_private_pages(image.pid);
  }
  return pages * store::kPageSize;
}

uint64_t Downtime::contents_bytes() const {
  uint64_t out = 0;
  for (const store::SharedMemory& memory : running_.image.shared_memory) out += memory.size;
  for (const store::FileIdentity& file : running_.image.files) {
    if (file.space >= 0 || (file.deleted && S_ISREG(file.mode) && file.other_name.empty())) out += file.size;
  }
  return out;
}

uint64_t Downtime::copying_us(uint64_t bytes) const {
  const uint64_t reading = bytes / kReadRate / WorkerPool::threads_for(options_.workers);
  if (!waits_for_link_) return reading;
  return std::max(reading, static_cast<uint64_t>(static_cast<double>(bytes) / link_rate_));
}

uint64_t Downtime::fork_us() const {
  uint64_t maps = 0;
  for (const store::ProcessImage& image : running_.image.processes) maps += image.maps.size();
  return kForkUs + private_bytes() / kMib * kForkUsPerMib + maps * kForkNsPerMap / 1000;
}

bool Downtime::is_short(uint64_t bytes, uint64_t scan_us) const {
  uint64_t others = scan_us / WorkerPool::threads_for(options_.workers) + copying_us(contents_bytes()) +
                    running_.image.descriptors.size() * kDescriptorUs;
  for (const store::ProcessImage& image : running_.image.processes)
    others += kProcessUs + image.threads.size() * kThreadUs + image.maps.size() * kMapUs;
  const uint64_t copying = copying_us(bytes);
  return others + copying <= options_.downtime_goal_us || copying <= std::min(others, 2 * options_.downtime_goal_us);
}

}  // namespace ckpt::engine
