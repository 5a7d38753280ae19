// One checkpoint by the agents of several nodes, which share the folder of checkpoints and nothing else.
//
// The agent of rank 0 leads: it makes an attempt, a hidden folder beside the checkpoints. Every agent puts what its
// ranks have into it (ranks-N, N its lowest rank), so that each knows who writes what; then its part (part-N: written,
// read again, synced, renamed; then written-N), while its beat-N changes all the time (heartbeat.h). Once all parts are
// there the leader moves their files into one folder, writes the metadata of all, and gives it its name. An attempt
// whose leader was killed is removed by the next one. Who is lost is noticed by the others: the leader gives up then,
// and who waits for a lost leader does.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "lib/flash/persist.h"

namespace ckpt::flash {

struct Attempt {
  std::filesystem::path folder;
  uint64_t step = 0;
};

/// The one that is under way, with its leader's ranks in it; nullopt: none.
std::optional<Attempt> find_attempt(const std::filesystem::path& directory);

struct JointControl {
  uint64_t joining_us = 0;        ///< for the other agents to join
  uint64_t writing_us = 0;        ///< then, for their parts
  uint64_t silent_us = 0;         ///< and so long without a sign of life one of them is lost
  std::function<void()> published;       ///< called when the ranks' memory is not needed until all have joined
  std::function<Result<void>()> joined;  ///< called when they have: it is needed again; fails where it is not as it was
  std::function<void()> release;         ///< called when it is no longer needed
};

/// The agent of rank 0. As `persist`, and kMismatch: not all agents joined in time, one declined (its reason) or is
/// lost.
Result<PersistReport> lead_persist(const PersistRequest& request, const JointControl& control, const Cancel& cancel);
/// Another one. It returns when the checkpoint is complete under its name. kMismatch: the leader gave it up, or is
/// lost.
Result<PersistReport> join_persist(const PersistRequest& request, const Attempt& attempt, const JointControl& control,
                                   const Cancel& cancel);
/// This node cannot take part; the leader fails with `why`.
void decline(const Attempt& attempt, uint32_t rank, const std::string& why);

}  // namespace ckpt::flash
