// Bytes from file to file without a visit to user space, as far as the kernel and the file systems allow.
#pragma once

#include <cstdint>
#include <string>

#include "lib/base/result.h"

namespace ckpt::io {

/// Exactly `length` bytes by copy_file_range, or by read and write where the two file systems cannot. A short source is
/// kCorrupt ("truncated").
Result<void> copy_range(int from, uint64_t from_offset, int to, uint64_t to_offset, uint64_t length,
                        const std::string& subject);

/// Lets `to` share the blocks of `from` (reflink: XFS, btrfs). All three numbers must be multiples of kCloneAlignment.
/// False: it cannot be done here; nothing was changed.
constexpr uint64_t kCloneAlignment = 4096;
bool clone_range(int from, uint64_t from_offset, int to, uint64_t to_offset, uint64_t length);

}  // namespace ckpt::io
