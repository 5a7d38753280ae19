// Pages of another process that are not there yet, supplied by userfaultfd in missing mode: the process waits at its
// first access until somebody has put the page in place. UFFDIO_COPY makes a page with its content at once, where a
// write from outside zeroes it first: 5.0 GiB/s against 3.2 (2 cores, kernel 6.18). It makes 4 KiB pages only.
#pragma once

#include <array>
#include <cstdint>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::proc {

/// The handshake with a userfaultfd that was made by the process whose memory it is about, with O_NONBLOCK. `events`:
/// forks, moved, removed and unmapped ranges are reported, and the process waits until each report has been read.
struct FaultAbilities {
  bool poison = false;  ///< `poison_missing` works (6.6)
};
Result<FaultAbilities> begin_faults(int userfault, bool events);

/// [start, end): whole private anonymous mappings. From here on an access to a page that is not there waits.
Result<void> watch_missing(int userfault, uint64_t start, uint64_t end);
Result<void> unwatch_missing(int userfault, uint64_t start, uint64_t end);

/// How far an operation on [at, at + length) got, and what stood in the way of the next page.
enum class Obstacle {
  kNone,      ///< all of it is done
  kThere,     ///< the page is there already
  kChanging,  ///< the address space is being changed: reports must be read first
  kNotOurs,   ///< no watched mapping is there (any more)
  kEnded,     ///< the process has no memory any more
  kFailed,    ///< `error`: an errno
};
struct Placed {
  uint64_t bytes = 0;
  Obstacle obstacle = Obstacle::kNone;
  int error = 0;
};
/// Threads that wait for these pages go on.
Placed copy_missing(int userfault, uint64_t to, ByteSpan pages);
Placed zero_missing(int userfault, uint64_t at, uint64_t length);
/// An access gets SIGBUS (EFAULT in a system call), for as long as the mapping lives.
Placed poison_missing(int userfault, uint64_t at, uint64_t length);
/// Threads that wait in the range look again.
void wake(int userfault, uint64_t at, uint64_t length);

/// One message of the kernel's.
struct FaultMessage {
  enum class Kind { kFault, kFork, kMove, kRemove, kUnmap, kOther } kind = Kind::kOther;
  uint64_t start = 0;  ///< kFault: the page; else the range
  uint64_t end = 0;
  uint64_t to = 0;     ///< kMove: where it is now
  int thread = 0;      ///< kFault: who waits, as a number of its own pid namespace
  bool write = false;  ///< kFault: for writing
  int child = -1;      ///< kFork: the child's userfaultfd, the reader's to close
};
/// As many messages as are there and `out` has room for. Takes no memory.
size_t read_faults(int userfault, std::array<FaultMessage, 32>& out);

}  // namespace ckpt::proc
