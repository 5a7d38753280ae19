// Computing again instead of copying (`--delta`): chunks that launches have written since recording began need not be
// in the image if those launches can be run again behind a restore.
//
// A restore that does so starts from the memory of the stop, with zeros in the chunks to be made, and runs a slice of
// the log: the launches that these chunks depend on. Whether that gives what is there is not argued but tried: at the
// stop, with locked APIs, memory is brought into just that state (what may be written is set aside on the device
// first), the slice is run, every chunk is hashed, and all is put back. What the arguments of launches say only decides
// what is worth trying, so that a kernel that lies costs a failed attempt, and its chunks are copied.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "lib/device/target.h"
#include "lib/memory/device/capture.h"

namespace ckpt::capture {

enum class DeltaMode {
  kAuto,       ///< computes again where that moves fewer bytes
  kCopy,
  kRecompute,  ///< wherever it can be proven
};

/// Which launches make which chunks.
struct ReplayPlan {
  std::vector<size_t> launches;    ///< indices into the log, in order
  std::set<uint64_t> chunks;       ///< addresses of the chunks that they make
  uint64_t touched_bytes = 0;      ///< read and written by the launches, as they say
  bool given_up = false;           ///< empty for that reason: `most_looks`
};

struct ReplayProblem {
  const std::vector<device::Launch>* log = nullptr;
  std::set<uint64_t> wanted;              ///< addresses of chunks to be made, if they can be
  std::vector<device::Range> owned;  ///< what a launch touches beside these cannot be looked at: it is not run again
  bool whole_writes = true;          ///< a chunk that a launch names as written as a whole is taken to be written so
  uint64_t most_looks =
      uint64_t{1} << 23;  ///< at a chunk for a launch: nobody waits longer than a second or two at the stop
};
/// The largest part of `wanted` that launches which can be run again make, without chunks as they were at the start:
/// those are gone. What a launch reads must be as it was then at the stop, or be made by launches before it. An empty
/// plan: none, or none was found with so many looks.
ReplayPlan plan_replay(const ReplayProblem& problem);

/// The delta of one stop, part of it as launches.
struct ReplayDelta {
  DevicePass pass;
  struct Source {
    std::vector<device::Launch> launches;  ///< to be run again
    std::set<uint64_t> chunks;             ///< that they make
    size_t recorded = 0;                   ///< launches of the log: what naive replay would run
    std::string why_not;                   ///< for people, where nothing is computed again
  };
  std::vector<Source> sources;  ///< in the order of the capture's
};
/// In place of `DeviceCapture::scan` and `copy_missing`, after `begin_recording`, which it ends. `options.cow_budget`:
/// of what is set aside, on each device, during an attempt. kTargetAltered: a kernel wrote, when it ran again, where it
/// had not written before, or what was set aside could not be put back; the process must not go on: whoever holds the
/// stop keeps the API locked (`DeviceStop::keep`).
Result<ReplayDelta> delta_with_replay(DeviceCapture& capture, DeltaMode mode, const DeviceOptions& options);

/// What the image's description says of it. kNoRoom: a launch's record is larger than an image takes.
Result<void> describe_replay(const ReplayDelta::Source& source, store::DeviceMemory& memory);

}  // namespace ckpt::capture
