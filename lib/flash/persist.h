// A step of all ranks out of memory onto disk: one checkpoint that the original software reads, complete and durable
// or absent.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/digest.h"
#include "lib/base/result.h"
#include "lib/flash/ledger.h"

namespace ckpt::flash {

/// Of a tensor that is kept for a rank though the checkpoint has another rank's (states of random numbers).
constexpr uint64_t kMostOwnTensor = 1 << 20;
/// Of all such tensors of one rank: the agent of rank 0 holds those of all ranks.
constexpr uint64_t most_own(uint32_t world) {
  constexpr uint64_t kOfRank = 64 << 20, kOfAll = 512 << 20;
  return kOfAll / world > kOfRank ? kOfRank : kOfAll / world;
}

/// Beside the checkpoint's own files: each rank's layout and objects, and hashes of its tensors (man/ckpt-agent.7).
constexpr const char* kRanksFile = "flash.ranks";

class Ownership;

/// What one of several nodes writes of a checkpoint.
struct Part {
  std::filesystem::path path;
  const Ownership& owners;
};

/// Of one rank, as kRanksFile has it.
struct RankRecord {
  uint32_t rank = 0;
  std::string layout, objects;
  std::vector<Hash128> hashes;  ///< one for each tensor of the layout
  /// Bytes of small tensors, by their place in the layout, of which the checkpoint has another rank's.
  std::map<uint32_t, std::string> own;
};
struct RanksRecord {
  uint64_t step = 0;
  uint32_t world = 0;
  std::vector<RankRecord> ranks;
};
struct PersistRequest {
  std::vector<Held> ranks;  ///< of one step, in the order of their numbers
  uint64_t step = 0;
  uint32_t world = 1;
  std::filesystem::path directory;
  std::string format = "dcp";  ///< torch_dist, dcp, torch, safetensors
  uint64_t rate = 0;           ///< bytes a second; 0: as fast as it goes
  const Cancel* hurry = nullptr;  ///< once this is requested `rate` counts no more
  unsigned workers = 0;        ///< 0: one per core
  unsigned keep = 0;           ///< checkpoints; 0: all
  bool verify = true;          ///< what was written is read again and compared by hash
  bool advances = true;        ///< it is the newest: LATEST names it, older ones beyond `keep` go
  std::optional<Part> part;    ///< no checkpoint yet: this node's part of one, which the agent of rank 0 puts together
};

struct PersistReport {
  uint64_t step = 0;
  std::filesystem::path path;
  uint64_t bytes = 0;  ///< on disk
  uint64_t plan_us = 0, write_us = 0, verify_us = 0, sync_us = 0;
  std::vector<std::string> notes;
  RanksRecord ranks;  ///< what kRanksFile has; of a part alone
};

/// kMismatch: the ranks contradict each other (named). kCorrupt: a tensor has a hole, or what was written reads back
/// otherwise. kInterrupted: cancelled. On any failure LATEST names what it named, and no folder is half written; what
/// killed agents have staged there is removed first.
Result<PersistReport> persist(const PersistRequest& request, const Cancel& cancel);

/// That a tensor was not written as `rank` has it; `kept`: RankRecord::own has it.
std::string note_of_other_bytes(const LayoutTensor& tensor, uint32_t writer, uint32_t rank, bool kept);

std::string encode_ranks(const RanksRecord& record);
/// kCorrupt: it is not what was written.
Result<RanksRecord> decode_ranks(ByteSpan bytes);

/// A rank's part of the newest checkpoint (or that of `path`, where it is not empty), in memory, complete in buffer 0.
/// kNotFound: no checkpoint. kMismatch: it is of another number of ranks, and sharded. kCorrupt: a hash differs.
Result<std::shared_ptr<Segment>> load_rank(const std::filesystem::path& directory, const std::filesystem::path& path,
                                           uint32_t rank, uint32_t world, const Cancel& cancel);

}  // namespace ckpt::flash
