// Another process's memory, from outside.
#pragma once

#include <sys/uio.h>

#include <span>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/proc/ptrace.h"

namespace ckpt::proc {

/// All of `out`, through process_vm_readv (5 GiB/s where /proc/PID/mem gives 3.6), or else through /proc/PID/mem, which
/// also reads what the process itself may not. kNotFound: the process has ended.
Result<void> read_memory(int pid, RemoteAddress from, MutableByteSpan out);
/// Several ranges packed one after the other into `out`, whose size is their sum; at most 1024 ranges go into one call.
Result<void> read_ranges(int pid, std::span<const iovec> remote, MutableByteSpan out);
/// process_vm_writev: the pages must be writable for the process itself.
Result<void> write_memory(int pid, RemoteAddress to, ByteSpan data);
/// Through /proc/PID/mem, which also writes to pages that the process may only read (private ones are copied first).
Result<void> poke_memory(int pid, RemoteAddress to, ByteSpan data);

}  // namespace ckpt::proc
