// The image of a job of many ranks: DIR/job.json, the last thing that is written, names a part for each rank, an image
// in DIR/rank-N. It may lie on one file system that all nodes have, or on each node's own with the parts of that node.
// Documented in man/ckpt-image.5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/topology.h"
#include "lib/store/image.h"

namespace ckpt::store {

inline constexpr const char* kJobName = "job.json";
inline constexpr uint32_t kMaxRanks = 1 << 20;

/// Variables that say which rank a process is, as far as they are set.
using RankVariables = std::vector<std::pair<std::string, std::string>>;
/// Those in the text of /proc/PID/environ.
RankVariables rank_variables(std::string_view environment);

struct JobProcess {
  int pid = 0;
  RankVariables variables;
  bool operator==(const JobProcess&) const = default;
};

struct JobMember {
  std::string host, boot_id;
  std::string folder;           ///< absolute, of the job on that host
  std::string image_id;         ///< of its part
  std::string manifest_sha256;  ///< of its part's manifest, which says the same of all files but its pages
  uint64_t bytes = 0;           ///< of its part, parents not counted
  int pid = 0;
  std::vector<std::string> arguments;
  uint64_t frozen_us = 0;
  uint64_t connections = 0;  ///< TCP connections, both ends of which are in the job: so many ends are in this part
  RankVariables variables;   ///< of the ckpt that took it
  std::vector<JobProcess> processes;  ///< those of the tree that have such variables
  bool operator==(const JobMember&) const = default;
};

/// One rank of the training, of which a part may have several.
struct JobRank {
  uint32_t part = 0;  ///< whose processes it has
  Place place;
  bool operator==(const JobRank&) const = default;
};

struct Job {
  std::string id;  ///< 32 hex digits; each part names it, too
  std::string created;
  std::string kind;                ///< "pre-dump" or "dump"
  std::vector<JobMember> members;  ///< by rank
  std::vector<JobRank> topology{}; ///< by rank of the training; empty: it was not told
  bool operator==(const Job&) const = default;
};

/// The ranks of the training that processes of a part have, by their variables: those that torchrun or Megatron go by,
/// else those of the launchers; where nothing says so the part's own number. In order, each once.
std::vector<uint32_t> training_ranks(const std::vector<RankVariables>& processes, uint32_t part);
std::vector<uint32_t> training_ranks(const JobMember& member, uint32_t part);
/// Which part has which rank. kUsage: the parts do not have just those ranks that `topology` tells of, each once;
/// `name`: of its file.
Result<std::vector<JobRank>> place_ranks(std::vector<Place> topology,
                                         const std::vector<std::vector<uint32_t>>& ranks_of_parts,
                                         const std::string& name);
/// Parts that have ranks in common use: those with replicas of one another's. In order; empty without coordinates.
std::vector<std::vector<uint32_t>> replica_parts(const std::vector<JobRank>& topology);
/// By part: whether it is the first that has some of the model. All of them without coordinates.
std::vector<bool> first_replicas(const std::vector<JobRank>& topology, size_t parts);

/// "rank-3"
std::string part_name(uint32_t rank);

std::string to_json(const Job& job);
Result<Job> parse_job(std::string_view text);
/// What `folder` holds of one: kNotFound (no job.json), kCorrupt.
Result<Job> read_job(const std::filesystem::path& folder);
bool looks_like_job(const std::filesystem::path& folder);
/// Durable when it returns; kUsage where there is one already.
Result<void> write_job(const std::filesystem::path& folder, const Job& job);

/// One part in `folder`: kNotFound (it is not there: on another node, or removed), kMismatch (the image there is
/// another one), kCorrupt.
Result<Manifest> read_part(const std::filesystem::path& folder, const Job& job, uint32_t rank);

}  // namespace ckpt::store
