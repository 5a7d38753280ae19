// Reads all that a checkpoint stores and compares it with what the checkpoint says about itself.
#pragma once

#include "formats/format.h"
#include "lib/base/cancel.h"
#include "lib/base/progress.h"

namespace ckpt::formats {

struct VerifyReport {
  std::vector<tensor::Finding> findings;  ///< Catalog::damage first
  uint64_t bytes_read = 0;
  uint64_t records = 0;                   ///< zip records whose CRC was compared
  uint64_t hashes = 0;                    ///< files whose SHA-256 was compared
};

/// `catalog` comes from a read with locate_data and tolerate_damage. CRCs that differ are warnings, for torch can be told not
/// to compute them, unless `strict`; so are parameters without their optimizer state and the reverse. Memory: 1 MiB a thread, and one decoded shard a thread where shards are encoded.
Result<VerifyReport> verify(const tensor::Catalog& catalog, bool strict, ProgressSink& progress, const Cancel& cancel);

}  // namespace ckpt::formats
