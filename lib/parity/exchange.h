// Carries a schedule out, as one member of its set: reads, sums and messages overlap, block by block, in bounded
// memory.
#pragma once

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/base/transport.h"
#include "lib/parity/parity_file.h"
#include "lib/parity/schedule.h"

namespace ckpt::parity {

/// Where a member's symbols are. `read` and `write` are called from one thread each, blocks in order.
class Symbols {
 public:
  virtual ~Symbols() = default;
  virtual Result<void> read(uint32_t row, uint64_t block, MutableByteSpan out) = 0;
  virtual Result<void> write(uint32_t row, uint64_t block, ByteSpan bytes) = 0;
};

struct ExchangeJob {
  const SetRecord* set = nullptr;  ///< ranks of the transport by member, chunk, block, epoch
  const Schedule* schedule = nullptr;
  std::vector<uint32_t> ranks;  ///< of the transport, by member
  uint32_t member = 0;
  uint32_t attempt = 0;  ///< in every message, with the epoch
};

/// All members of the set call it. One that fails goes on with empty messages, so that nobody waits for it: all then
/// fail, and the caller tells the first reason from what came of it (kIo, "another rank has failed").
Result<void> exchange(Transport& transport, const ExchangeJob& job, Symbols& symbols, ProgressSink& progress,
                      const Cancel& cancel);

/// The size of a block that keeps a member of such a schedule within so many bytes, as far as that can be.
uint32_t block_for(const Schedule& schedule, uint32_t members, uint64_t chunk, uint64_t memory);

/// "another rank has failed": no reason of one's own.
bool is_secondary(const Error& error);

}  // namespace ckpt::parity
