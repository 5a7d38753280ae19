// An io_uring from outside: what the fdinfo of its descriptor tells.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/procfs.h"

namespace ckpt::proc {

/// /proc/PID/fdinfo/N of an io_uring (io_uring/fdinfo.c of Linux, since 5.17). Counters run from 0 and wrap at 2^32.
struct UringInfo {
  uint32_t sq_entries = 0, cq_entries = 0;  ///< powers of 2
  uint32_t submitted = 0;  ///< requests that the kernel has taken: CachedSqHead
  uint32_t tail = 0;       ///< up to which the program has written requests: SqTail
  uint32_t completed = 0;  ///< completions that it has put into the queue: CachedCqTail
  int poller = -1;         ///< the kernel's thread that polls the submission queue (IORING_SETUP_SQPOLL), -1: none
  bool has_personalities = false;
  bool has_overflow = false;  ///< completions wait until the queue has room
  std::vector<int> polled;    ///< opcodes of requests that wait until a file is ready
  uint32_t file_slots = 0;    ///< registered files, empty slots included
  std::vector<std::pair<uint32_t, std::string>> files;  ///< slot, and the path as the kernel knows it
  std::vector<std::pair<uint64_t, uint64_t>> buffers;   ///< registered ones: address and length; 0, 0: an empty slot
};

/// kBusy: the kernel was at work on the ring and told nothing. kUnsupported: a text that is not known.
Result<UringInfo> parse_uring_info(std::string_view text);
Result<UringInfo> read_uring_info(int pid, int fd);

/// A thread that the kernel made in the process for requests of io_uring: it never runs code of the process. Telling a
/// signal or a tracer to stop it would break off its request. False: it has ended.
bool is_io_worker(int pid, int tid);
bool is_io_worker(const Stat& stat);

}  // namespace ckpt::proc
