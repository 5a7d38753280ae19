#include "lib/proc/rseq.h"

#include <span>

#include "lib/proc/remote_memory.h"

namespace ckpt::proc {

namespace {

/// struct rseq_cs of linux/rseq.h: a section of code and where to go when it was left in the middle.
struct CriticalSection {
  uint32_t version, flags;
  uint64_t start_ip, post_commit_offset, abort_ip;
};
constexpr uint64_t kSectionOffset = 8;  // struct rseq: cpu_id_start, cpu_id, rseq_cs

}  // namespace

Result<uint64_t> resumption_address(int pid, uint64_t area, uint64_t rip) {
  if (area == 0) return rip;
  uint64_t pointer = 0;
  CKPT_TRY(read_memory(pid, RemoteAddress(area + kSectionOffset), std::as_writable_bytes(std::span(&pointer, 1))));
  if (pointer == 0) return rip;
  CriticalSection section{};
  CKPT_TRY(read_memory(pid, RemoteAddress(pointer), std::as_writable_bytes(std::span(&section, 1))));
  return rip - section.start_ip < section.post_commit_offset ? section.abort_ip : rip;
}

}  // namespace ckpt::proc
