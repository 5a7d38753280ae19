// The memory that a ring shares with its program, mapped into ckpt.
#pragma once

#include <linux/io_uring.h>

#include <cstdint>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/io_uring/record.h"

namespace ckpt::state {

/// Offsets of the second of a ring's two mappings (IORING_OFF_SQES); the first, of both queues, has offset 0, or
/// IORING_OFF_CQ_RING where a program maps the queues apart.
inline constexpr uint64_t kUringQueues = 0, kUringCompletions = 0x8000000, kUringEntries = 0x10000000;

/// As io_uring_setup(2) tells them: where the members of the queues lie.
struct UringLayout {
  io_sqring_offsets sq{};
  io_cqring_offsets cq{};
};

/// A new ring, and where its members lie. kUnsupported: this kernel, or whoever runs ckpt, may not have one.
Result<UniqueFd> make_ring(io_uring_params& params, uint32_t entries);
/// That of this kernel.
Result<UringLayout> uring_layout();

/// Bytes of both queues, and of the submission entries (rings_size in io_uring/io_uring.c).
uint64_t queues_size(const store::IoUring& ring, const UringLayout& layout);
uint64_t entries_size(const store::IoUring& ring);
/// Where the array of the submission queue begins, in a ring that has one.
uint64_t array_offset(const store::IoUring& ring, const UringLayout& layout);

class UringMemory {
 public:
  /// `ring`: sizes and flags.
  static Result<UringMemory> map(int fd, const store::IoUring& ring, const UringLayout& layout);

  std::byte* queues() const { return queues_.data(); }
  std::byte* entries() const { return entries_.data(); }
  uint32_t* word(uint32_t offset) const { return reinterpret_cast<uint32_t*>(queues_.data() + offset); }
  /// Into `queues`, then `entries`; kUnsupported where there is less memory than the sizes say.
  Result<void> read(MutableByteSpan queues, MutableByteSpan entries) const;

 private:
  Mapping queues_, entries_;
};

/// Fills sqe_size, cqe_size and no_array of a ring whose numbers of entries are known, from the memory that it has.
Result<void> find_shape(int fd, const UringLayout& layout, store::IoUring& ring);

}  // namespace ckpt::state
