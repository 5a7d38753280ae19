#include "lib/proc/io_uring_kernel.h"

#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "lib/base/unique_fd.h"
#include "lib/proc/kernel_memory.h"

namespace ckpt::proc {

namespace {

constexpr const char* kContext = "io_ring_ctx";
constexpr const char* kSubject = "an io_uring";

/// Calls `visit(index, entry)` for each entry of an xarray (lib/xarray.c), whose first word is `head`.
class ArrayWalk {
 public:
  using Visit = std::function<Result<void>(uint64_t index, uint64_t entry)>;
  ArrayWalk(const KernelMemory& kernel, const Visit& visit) : kernel_(kernel), visit_(visit) {}

  Result<void> run(uint64_t entry, uint64_t index, unsigned depth) {
    constexpr uint64_t kInternal = 2, kFirstNode = 4096, kSlots = 64, kReserved = 257 << 2 | kInternal;
    constexpr unsigned kSlotBits = 6, kDeepest = 6;
    if (entry == 0 || entry == kReserved) return {};
    if ((entry & 3) != kInternal) return visit_(index, entry);
    if (entry < kFirstNode || depth == kDeepest) return fail(Code::kBusy, kSubject, "is being worked on");
    const uint64_t node = entry - kInternal;
    CKPT_TRY_ASSIGN(const uint64_t slots, kernel_.offset_of("xa_node", "slots"));
    CKPT_TRY_ASSIGN(const auto shift, kernel_.read<uint8_t>(node, "xa_node", "shift"));
    for (uint64_t i = 0; i < kSlots; ++i) {
      CKPT_TRY_ASSIGN(const uint64_t slot, kernel_.word_at(node + slots + i * sizeof(uint64_t)));
      CKPT_TRY(run(slot, index | i << std::min<unsigned>(shift, kSlotBits * kDeepest), depth + 1));
    }
    return {};
  }

 private:
  const KernelMemory& kernel_;
  const Visit& visit_;
};

Result<uint64_t> array_head(const KernelMemory& kernel, uint64_t context, const char* member) {
  CKPT_TRY_ASSIGN(const uint64_t array, kernel.offset_of(kContext, member));
  return kernel.read<uint64_t>(context + array, "xarray", "xa_head");
}

Result<UringCredentials> read_credentials(const KernelMemory& kernel, uint64_t credentials) {
  constexpr int kMostGroups = 1 << 16;
  constexpr const char* kStructure = "cred";
  UringCredentials out;
  const std::array<const char*, 4> uids = {"uid", "euid", "suid", "fsuid"}, gids = {"gid", "egid", "sgid", "fsgid"};
  for (size_t i = 0; i < uids.size(); ++i) {
    CKPT_TRY_ASSIGN(out.uid[i], kernel.read<uint32_t>(credentials, kStructure, uids[i]));
    CKPT_TRY_ASSIGN(out.gid[i], kernel.read<uint32_t>(credentials, kStructure, gids[i]));
  }
  CKPT_TRY_ASSIGN(out.capabilities, kernel.read<uint64_t>(credentials, kStructure, "cap_effective"));
  CKPT_TRY_ASSIGN(const auto groups, kernel.read<uint64_t>(credentials, kStructure, "group_info"));
  CKPT_TRY_ASSIGN(const int count, kernel.read<int>(groups, "group_info", "ngroups"));
  CKPT_TRY_ASSIGN(const uint64_t first, kernel.offset_of("group_info", "gid"));
  if (count < 0 || count > kMostGroups) return fail(Code::kBusy, kSubject, "has credentials that are being changed");
  for (int i = 0; i < count; ++i) {
    CKPT_TRY_ASSIGN(const uint64_t word, kernel.word_at(groups + first + static_cast<uint64_t>(i) * sizeof(uint32_t)));
    out.groups.push_back(static_cast<uint32_t>(word));
  }
  return out;
}

Result<void> read_personalities(const KernelMemory& kernel, uint64_t context, UringKernelInfo& out) {
  CKPT_TRY_ASSIGN(const uint64_t head, array_head(kernel, context, "personalities"));
  const ArrayWalk::Visit take = [&](uint64_t index, uint64_t entry) -> Result<void> {
    CKPT_TRY_ASSIGN(UringCredentials credentials, read_credentials(kernel, entry));
    out.personalities.emplace_back(static_cast<uint32_t>(index), std::move(credentials));
    return {};
  };
  return ArrayWalk(kernel, take).run(head, 0, 0);
}

/// Where they cannot be read none are told: whoever asks the ring for something is refused that.
Result<void> read_restrictions(const KernelMemory& kernel, uint64_t context, UringKernelInfo& out) {
  constexpr const char* kStructure = "io_restriction";
  CKPT_TRY_ASSIGN(const uint64_t offset, kernel.offset_of(kContext, "restrictions"));
  const uint64_t at = context + offset;
  const auto first = kernel.offset_of(kStructure, "register_op"), second = kernel.offset_of(kStructure, "sqe_op");
  const auto end = kernel.offset_of(kStructure, "sqe_flags_allowed");
  const auto registered = kernel.read<uint8_t>(at, kStructure, "registered");
  if (!first || !second || !end || !registered || *second - *first != sizeof(uint64_t) ||
      *end - *second != sizeof(uint64_t))
    return {};
  out.has_restrictions = *registered != 0;
  if (!out.has_restrictions) return {};
  UringRestrictions& r = out.restrictions;
  CKPT_TRY_ASSIGN(r.registrations, kernel.read<uint64_t>(at, kStructure, "register_op"));
  CKPT_TRY_ASSIGN(r.requests, kernel.read<uint64_t>(at, kStructure, "sqe_op"));
  CKPT_TRY_ASSIGN(r.flags_allowed, kernel.read<uint8_t>(at, kStructure, "sqe_flags_allowed"));
  CKPT_TRY_ASSIGN(r.flags_required, kernel.read<uint8_t>(at, kStructure, "sqe_flags_required"));
  return {};
}

/// `table`: a `struct io_rsrc_data`, as it is since 6.13; before that the tags lie elsewhere, and none are seen.
Result<std::vector<uint64_t>> read_tags(const KernelMemory& kernel, uint64_t table) {
  constexpr uint32_t kMost = 1 << 20;
  std::vector<uint64_t> out;
  if (!kernel.offset_of("io_rsrc_data", "nodes") || !kernel.offset_of("io_rsrc_node", "tag")) return out;
  CKPT_TRY_ASSIGN(const auto count, kernel.read<uint32_t>(table, "io_rsrc_data", "nr"));
  CKPT_TRY_ASSIGN(const auto nodes, kernel.read<uint64_t>(table, "io_rsrc_data", "nodes"));
  for (uint32_t i = 0; i < std::min(count, kMost); ++i) {
    CKPT_TRY_ASSIGN(const uint64_t node, kernel.word_at(nodes + i * sizeof(uint64_t)));
    uint64_t tag = 0;
    if (node != 0) {
      CKPT_TRY_ASSIGN(tag, kernel.read<uint64_t>(node, "io_rsrc_node", "tag"));
    }
    if (tag == 0) continue;
    out.resize(count);
    out[i] = tag;
  }
  return out;
}

Result<void> read_all_tags(const KernelMemory& kernel, uint64_t context, UringKernelInfo& out) {
  auto files = kernel.offset_of(kContext, "file_table"), data = kernel.offset_of("io_file_table", "data");
  auto buffers = kernel.offset_of(kContext, "buf_table");
  if (!files || !data || !buffers) return {};
  CKPT_TRY_ASSIGN(out.file_tags, read_tags(kernel, context + *files + *data));
  CKPT_TRY_ASSIGN(out.buffer_tags, read_tags(kernel, context + *buffers));
  return {};
}

/// The kernel keeps times in its own ticks: how many there are in a second shows in a ring of ckpt's.
Result<uint32_t> ticks_in_second(const KernelMemory& kernel) {
  constexpr uint32_t kSecondMs = 1000;
  io_uring_params params{};
  params.flags = IORING_SETUP_SQPOLL, params.sq_thread_idle = kSecondMs;
  const UniqueFd ring(static_cast<int>(::syscall(SYS_io_uring_setup, 1, &params)));
  if (!ring) return sys_error(kSubject, "with a thread that polls it cannot be made here");
  CKPT_TRY_ASSIGN(const uint64_t file, kernel.file_of(ring.get()));
  CKPT_TRY_ASSIGN(const auto context, kernel.read<uint64_t>(file, "file", "private_data"));
  CKPT_TRY_ASSIGN(const auto ticks, kernel.read<uint32_t>(context, kContext, "sq_thread_idle"));
  if (ticks == 0) return fail(Code::kUnsupported, kSubject, "is kept by this kernel in a way that is not known");
  return ticks;
}

Result<void> read_poller(const KernelMemory& kernel, uint64_t context, UringKernelInfo& out) {
  static const Result<uint32_t> ticks = ticks_in_second(kernel);
  if (!ticks) return Error(ticks.error());
  constexpr uint64_t kSecondMs = 1000;
  CKPT_TRY_ASSIGN(const auto idle, kernel.read<uint32_t>(context, kContext, "sq_thread_idle"));
  out.idle_ms = static_cast<uint32_t>(idle * kSecondMs / *ticks);
  CKPT_TRY_ASSIGN(const auto own, kernel.read<uint64_t>(context, kContext, "sq_creds"));
  CKPT_TRY_ASSIGN(out.credentials, read_credentials(kernel, own));
  if ((out.flags & IORING_SETUP_SQ_AFF) == 0) return {};
  CKPT_TRY_ASSIGN(const auto shared, kernel.read<uint64_t>(context, kContext, "sq_data"));
  CKPT_TRY_ASSIGN(out.processor, kernel.read<int>(shared, "io_sq_data", "sq_cpu"));
  return {};
}

/// What this kernel does not have cannot be there.
Result<std::string> find_other(const KernelMemory& kernel, uint64_t context, uint32_t flags) {
  constexpr uint32_t kNoMmap = 1 << 14;
  constexpr uint32_t kMonotonic = 1;
  if ((flags & kNoMmap) != 0) return std::string("queues in the program's own memory (IORING_SETUP_NO_MMAP)");
  for (const auto& [member, what] : {std::pair("io_bl_xa", "buffers in groups (provided buffers)"),
                                     std::pair("zcrx_ctxs", "a queue of a network device (zero copy)")}) {
    if (!kernel.offset_of(kContext, member)) continue;
    CKPT_TRY_ASSIGN(const uint64_t head, array_head(kernel, context, member));
    if (head != 0) return std::string(what);
  }
  if (auto region = kernel.offset_of(kContext, "param_region"); region) {
    CKPT_TRY_ASSIGN(const auto memory, kernel.read<uint64_t>(context + *region, "io_mapped_region", "ptr"));
    if (memory != 0) return std::string("a region of memory for arguments (IORING_REGISTER_MEM_REGION)");
  }
  if (kernel.offset_of(kContext, "clockid")) {
    CKPT_TRY_ASSIGN(const auto clock, kernel.read<uint32_t>(context, kContext, "clockid"));
    if (clock != kMonotonic) return std::string("a clock of its own (IORING_REGISTER_CLOCK)");
  }
  return std::string();
}

Result<UringKernelInfo> read_context(const KernelMemory& kernel, uint64_t context) {
  UringKernelInfo out;
  CKPT_TRY_ASSIGN(out.flags, kernel.read<uint32_t>(context, kContext, "flags"));
  CKPT_TRY(read_personalities(kernel, context, out));
  CKPT_TRY(read_restrictions(kernel, context, out));
  CKPT_TRY(read_all_tags(kernel, context, out));
  if ((out.flags & IORING_SETUP_SQPOLL) != 0) CKPT_TRY(read_poller(kernel, context, out));
  CKPT_TRY_ASSIGN(out.other, find_other(kernel, context, out.flags));
  return out;
}

}  // namespace

Result<UringKernelInfo> read_uring_in_kernel(int fd) {
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const uint64_t file, kernel->file_of(fd));
  CKPT_TRY_ASSIGN(const auto context, kernel->read<uint64_t>(file, "file", "private_data"));
  return read_context(*kernel, context);
}

Result<UringCredentials> credentials_in_kernel(int pid, int pidfd) {
  CKPT_TRY_ASSIGN(const KernelMemory* kernel, KernelMemory::get());
  CKPT_TRY_ASSIGN(const uint64_t task, kernel->task_of(pid, pidfd));
  CKPT_TRY_ASSIGN(const auto credentials, kernel->read<uint64_t>(task, "task_struct", "cred"));
  return read_credentials(*kernel, credentials);
}

}  // namespace ckpt::proc
