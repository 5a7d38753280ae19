// Which part of a job this process is: said by the user, or found in what launchers put into the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lib/model/convert/workspace.h"
#include "lib/base/result.h"

namespace ckpt::model {

struct Rank {
  PartOf part;
  std::string found_in;  ///< the variable that it was taken from; empty: said by the user
};

/// Nothing: not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// "2/8" (counted from 0), "auto", or "auto/8" where the launcher does not say how many there are. Auto looks at
/// torchrun, Open MPI, PMI (MPICH, Intel), a step of srun, a Slurm array, a Kubernetes indexed job, and takes the
/// innermost that has more than one rank. SLURM_PROCID of a batch script, which is no step, counts for nothing. kUsage:
/// none of them, or one that contradicts itself.
Result<Rank> find_rank(const std::string& text, const Environment& environment);

}  // namespace ckpt::model
