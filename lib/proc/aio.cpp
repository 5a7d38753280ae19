#include "lib/proc/aio.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lib/proc/kernel_memory.h"

namespace ckpt::proc {

namespace {

/// What of a `struct kioctx` changes while requests are made and answered.
struct Counters {
  uint32_t available = 0;  ///< slots for requests that nobody has
  uint32_t parked = 0;     ///< of these, with a processor
  uint32_t answered = 0;   ///< whose slots have not been given back
  uint32_t polls = 0;
  bool operator==(const Counters&) const = default;
};

Result<uint32_t> count_polls(const KernelMemory& kernel, uint64_t context) {
  constexpr uint32_t kMost = 1 << 20;
  CKPT_TRY_ASSIGN(const uint64_t offset, kernel.offset_of("kioctx", "active_reqs"));
  const uint64_t head = context + offset;
  CKPT_TRY_ASSIGN(uint64_t at, kernel.word_at(head));
  uint32_t count = 0;
  for (; at != head && count < kMost; ++count) {
    const auto next = kernel.word_at(at);
    if (!next || *next == at) return fail(Code::kBusy, "an AIO context", "is being worked on");  // taken off the list
    at = *next;
  }
  return count;
}

Result<Counters> count_once(const KernelMemory& kernel, uint64_t context) {
  Counters out;
  CKPT_TRY_ASSIGN(out.available, kernel.read<uint32_t>(context, "kioctx", "reqs_available"));
  CKPT_TRY_ASSIGN(out.answered, kernel.read<uint32_t>(context, "kioctx", "completed_events"));
  CKPT_TRY_ASSIGN(const uint64_t own, kernel.read<uint64_t>(context, "kioctx", "cpu"));
  for (uint64_t processor : kernel.processor_offsets()) {
    CKPT_TRY_ASSIGN(const auto parked, kernel.read<uint32_t>(own + processor, "kioctx_cpu", "reqs_available"));
    out.parked += parked;
  }
  CKPT_TRY_ASSIGN(out.polls, count_polls(kernel, context));
  return out;
}

/// Two looks that agree are one of an instant between them.
Result<Counters> count(const KernelMemory& kernel, uint64_t context) {
  constexpr int kLooks = 50;
  std::optional<Counters> last;
  for (int look = 0; look < kLooks; ++look) {
    auto next = count_once(kernel, context);
    if (!next && next.error().code != Code::kBusy) return next;
    if (next && last && *next == *last) return next;
    last = next ? std::optional(*next) : std::nullopt;
  }
  return fail(Code::kBusy, "an AIO context", "is being worked on");
}

Result<AioContextInfo> look_at(const KernelMemory& kernel, uint64_t context) {
  constexpr uint64_t kPage = 4096;
  AioContextInfo out;
  CKPT_TRY_ASSIGN(out.address, kernel.read<uint64_t>(context, "kioctx", "mmap_base"));
  CKPT_TRY_ASSIGN(out.size, kernel.read<uint64_t>(context, "kioctx", "mmap_size"));
  CKPT_TRY_ASSIGN(out.events, kernel.read<uint32_t>(context, "kioctx", "nr_events"));
  CKPT_TRY_ASSIGN(out.requests, kernel.read<uint32_t>(context, "kioctx", "max_reqs"));
  CKPT_TRY_ASSIGN(const Counters now, count(kernel, context));
  const auto left = static_cast<int64_t>(out.events) - 1 - now.available - now.parked - now.answered;
  if (out.size % kPage != 0 || left < 0 || left >= out.events || now.polls > left)
    return fail(Code::kUnsupported, "an AIO context", "is kept by this kernel in a way that is not known");
  out.in_flight = static_cast<uint32_t>(left), out.polls = now.polls;
  return out;
}

}  // namespace

Result<std::vector<AioContextInfo>> read_aio_contexts(int pid, int pidfd) {
  constexpr uint32_t kMost = 1 << 16;
  std::vector<AioContextInfo> out;
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const uint64_t task, kernel->task_of(pid, pidfd));
  CKPT_TRY_ASSIGN(const uint64_t memory, kernel->read<uint64_t>(task, "task_struct", "mm"));
  if (memory == 0) return fail(Code::kNotFound, fmt::format("process {}", pid), "has ended");
  CKPT_TRY_ASSIGN(const uint64_t table, kernel->read<uint64_t>(memory, "mm_struct", "ioctx_table"));
  if (table == 0) return out;
  CKPT_TRY_ASSIGN(const auto slots, kernel->read<uint32_t>(table, "kioctx_table", "nr"));
  CKPT_TRY_ASSIGN(const uint64_t first, kernel->offset_of("kioctx_table", "table"));
  for (uint32_t i = 0; i < std::min(slots, kMost); ++i) {
    CKPT_TRY_ASSIGN(const uint64_t context, kernel->word_at(table + first + i * sizeof(uint64_t)));
    if (context == 0) continue;
    CKPT_TRY_ASSIGN(AioContextInfo info, look_at(*kernel, context));
    out.push_back(info);
  }
  return out;
}

}  // namespace ckpt::proc
