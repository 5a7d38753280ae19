// What protect, rebuild and verify have in common: they are carried out by all ranks of a job together.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/parity/exchange.h"

namespace ckpt::parity {

/// One rank of the job.
struct Rank {
  Transport& transport;
  std::filesystem::path folder;
  Place place;
  uint64_t memory = 0;  ///< for buffers
  ProgressSink& progress;
  const Cancel& cancel;
};

/// All ranks agree whether all of them are well: the error of the lowest rank that has a reason of its own, else {}.
Result<void> agree(Transport& transport, const Result<void>& mine);

/// What protection did, the same on every rank.
struct Protection {
  std::vector<SetRecord> sets;
  uint64_t data_bytes = 0;    ///< of all runs
  uint64_t parity_bytes = 0;  ///< of all parity
};

struct ProtectOptions {
  SetRules rules;
  bool dry_run = false;
};

/// Makes parity of the ranks' folders and leaves it beside them; that of earlier protections goes once the new one is
/// complete and durable on all ranks. Until then the old one is whole: also where ckpt is killed.
Result<Protection> protect(Rank& rank, const ProtectOptions& options);

/// How a member is, and if it is not well the first thing that was found.
enum class State { kWhole, kMissing, kDamaged, kChanged };
std::string_view state_name(State state);

struct MemberHealth {
  uint32_t rank = 0;
  std::string node;
  std::string folder;  ///< empty: nobody has it
  State data = State::kMissing, parity = State::kMissing;
  std::string finding;
};

struct SetHealth {
  SetRecord set;
  std::vector<MemberHealth> members;
  bool whole = false, repairable = false;
  std::vector<uint32_t> from;  ///< the ranks whose bytes a repair reads
};

struct Health {
  uint64_t epoch = 0;
  uint32_t world = 0;
  std::vector<SetHealth> sets;
  std::vector<uint32_t> unknown;  ///< ranks of whose sets nothing is left
  std::vector<std::string> strangers;  ///< folders that are not of this protection
  bool whole() const;
  bool repairable() const;
};

/// Reads every byte of data and parity and compares its CRCs. kNotFound: there is no parity.
Result<Health> check_parity(Rank& rank);

struct RebuildOptions {
  bool force = false;  ///< replace a damaged folder
  bool dry_run = false;
};

struct Rebuilt {
  Health health;                 ///< as it was found at last
  std::vector<uint32_t> data;    ///< ranks whose folders came back
  std::vector<uint32_t> parity;  ///< ranks whose parity did
  uint64_t bytes = 0;
  uint32_t attempts = 0;
};

/// Brings back what is lost, byte for byte. Members that turn out to be damaged meanwhile are brought back, too, as
/// long as the scheme allows. Every byte is read where nothing seems to be lost, else what the repair needs. A rank
/// without a folder takes the place of one that is lost.
Result<Rebuilt> rebuild(Rank& rank, const RebuildOptions& options);

}  // namespace ckpt::parity
