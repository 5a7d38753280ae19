// Native AIO contexts (io_setup) of a process, as the kernel keeps them.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/result.h"

namespace ckpt::proc {

struct AioContextInfo {
  uint64_t address = 0;   ///< of its ring in the process, which is its number, too
  uint64_t size = 0;      ///< bytes of the ring's mapping
  uint32_t events = 0;    ///< that the ring holds
  uint32_t requests = 0;  ///< that io_setup was asked for
  uint32_t in_flight = 0;  ///< requests that have not been answered, `polls` included
  uint32_t polls = 0;      ///< of which these wait until a file is ready (IOCB_CMD_POLL)
  bool operator==(const AioContextInfo&) const = default;
};

/// By number. Of a process that runs the requests are those of about now; of one that stands still they get fewer
/// only. kNotFound: it has ended. kPermission, kUnsupported: see KernelMemory; kBusy: they change all the time.
Result<std::vector<AioContextInfo>> read_aio_contexts(int pid, int pidfd);

}  // namespace ckpt::proc
