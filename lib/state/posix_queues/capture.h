// POSIX message queues, from a duplicate of a descriptor.
#pragma once

#include <string>
#include <string_view>

#include "lib/base/result.h"
#include "lib/state/system_v_ipc/record.h"

namespace ckpt::capture {

/// Whether an open file is one.
bool is_posix_queue(int fd);

/// `link`: the text of /proc/PID/fd/N. kUnsupported: a process waits to be notified (mq_notify), and nobody can read of
/// what. Of a queue that was unlinked the messages are copied when `frozen`: the kernel shows none without taking it
/// out, so a helper that a killed ckpt does not take along takes them and puts them back; every process that uses it
/// must stand still.
Result<store::PosixQueue> describe_posix_queue(int fd, std::string_view link, bool frozen);

}  // namespace ckpt::capture
