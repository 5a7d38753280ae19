// Write tracking by a userfaultfd in asynchronous write-protect mode (6.7): the kernel notes a first write by itself,
// the target never waits. The descriptor belongs to the target's address space, not to its descriptor table: it is made
// inside, taken out with pidfd_getfd, and closed inside. Tracking ends when the last duplicate is closed; every page
// then reads as written, which costs speed and never correctness.
#pragma once

#include <cstdint>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/borrowed_thread.h"

namespace ckpt::proc {

/// A duplicate of the target's userfaultfd, its feature handshake done. kUnsupported where the kernel lacks it.
Result<UniqueFd> make_write_tracker(BorrowedThread& thread, int pidfd);
/// Puts [start, end), one or more whole VMAs, under tracking. Doing it again for a range is harmless.
Result<void> track_range(int userfault, uint64_t start, uint64_t end);

/// pidfd_open and pidfd_getfd of linux 5.6 (no wrappers in Debian 12's glibc).
Result<UniqueFd> open_pidfd(int pid);
Result<UniqueFd> get_remote_fd(int pidfd, int remote_fd);

}  // namespace ckpt::proc
