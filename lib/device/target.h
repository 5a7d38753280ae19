// A process whose device memory is captured, as seen from ckpt: what the agent inside it (plugins/interposer) does on
// request. Calls block. kNotFound: the target has ended. kBusy: not within the time; it is as before the call, unless
// said.
//
// The API lock stands in front of everything that changes device memory or what there is of it: launches, copies,
// fills, allocations and their end. Beside it the target runs on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/device/memory.h"

namespace ckpt::device {

/// Bytes of t1 that were set aside before something could write them.
struct SavedRange {
  Range original;        ///< in the target
  uint64_t buffer = 0;   ///< `export_saved` gives it
  uint64_t buffer_size = 0;
  uint64_t offset = 0;   ///< in the buffer
};

/// What launches did while copy-on-write was on.
struct SavedTable {
  std::vector<SavedRange> saved;  ///< complete: the copies have been waited for
  std::vector<Range> missed;      ///< may have been written and was not saved: the budget, or no memory
};

enum class Renew : uint8_t {
  kAttached,  ///< what came by `attach` from a descriptor: the driver's own checkpoint cannot carry what another made
  kAny,       ///< the target's own, too: drivers have refused to export what their checkpoint restored
};

class Target {
 public:
  virtual ~Target() = default;

  virtual int pid() const = 0;
  virtual Result<std::string> device_uuid(int device) = 0;
  /// Stable only while the API is locked.
  virtual Result<std::vector<Allocation>> allocations() = 0;
  /// The device of each context, as an ordinal in the target.
  virtual Result<std::vector<int>> contexts() = 0;
  /// What the driver's own checkpoint cannot carry, a sentence each: "managed memory (3 allocations, 1.0 GiB), ...".
  virtual Result<std::vector<std::string>> hazards() = 0;
  /// The memory of an owned allocation, to import. kUnsupported: it is not owned; kNotFound: there is none of that id.
  virtual Result<UniqueFd> export_allocation(uint64_t id) = 0;

  /// From here on nothing passes; returns when calls in flight have left. kBusy: the API is unlocked again.
  virtual Result<void> lock_api(uint64_t timeout_us) = 0;
  /// API locked. Everything that was submitted is done. kBusy: it is not; the API stays locked, the caller unlocks it.
  virtual Result<void> drain(uint64_t timeout_us) = 0;
  /// Does nothing where it is open.
  virtual Result<void> unlock_api() = 0;

  /// API locked and drained. Until `end_cow` what of `wanted` (whole chunks) a launch, copy or fill may write, as far
  /// as its arguments tell, is copied aside on the device first, once; no more than `budget` bytes of new memory. The
  /// copy goes ahead of the launch on its stream, and launches of other streams that may write the same wait for it,
  /// too.
  virtual Result<void> begin_cow(uint64_t budget, const std::vector<Range>& wanted) = 0;
  virtual Result<SavedTable> saved(uint64_t timeout_us) = 0;
  virtual Result<UniqueFd> export_saved(uint64_t buffer) = 0;
  /// Frees what was set aside; imports keep theirs.
  virtual Result<void> end_cow() = 0;

  /// API locked and drained. Unmaps an owned allocation and lets go of its memory; the address range stays reserved.
  virtual Result<void> release(uint64_t id) = 0;
  /// API locked. Memory for a released allocation at its old address: that of `fd`, or fresh (-1; not zeroed).
  virtual Result<void> attach(uint64_t id, int fd) = 0;
  /// API locked and drained. The memory of an allocation is replaced by new memory of the target's own, with the same
  /// content. kNoRoom: it is as it was.
  virtual Result<void> renew(uint64_t id, Renew which) = 0;

  /// API locked. Released memory is the caller's alone from here on, and this conversation ends with the API locked:
  /// nothing of it is left in the target, which can be frozen and dumped. It can be spoken to again after `wake`, or,
  /// by another object, when it finds itself made again or has run for `lease_us`; then the API is unlocked by
  /// itself only if no memory is missing.
  virtual Result<void> hold(uint64_t lease_us) = 0;
  /// After `hold`: the lease begins anew. By one thread, which no other call on this object goes beside.
  virtual void renew_lease() = 0;
  /// After `hold`, once the target runs again: the conversation goes on. kNotFound: not yet, or it has ended.
  virtual Result<void> wake() = 0;

  /// API locked. From now on a launch, copy or fill that may touch one of these waits at the API lock until
  /// `filled` was called for it. Whatever cannot tell what it touches waits for all of them. A copy from host memory
  /// touches what its words are addresses of: kernels will find them there. (Addresses in device memory the filling
  /// side follows.)
  virtual Result<void> begin_fill(const std::vector<uint64_t>& ids) = 0;
  /// The allocations that a waiting call needs, not yet filled; nothing: none waited within the time.
  virtual Result<std::optional<std::vector<uint64_t>>> next_demand(uint64_t timeout_us) = 0;
  /// The content is there. The last one ends `begin_fill`.
  virtual Result<void> filled(uint64_t id) = 0;

  /// API locked. Launches, copies and fills are written down, those of before forgotten. No more than `limit` of them.
  virtual Result<void> begin_recording(uint64_t limit) = 0;
  /// API locked. In order. kNoRoom: there were more than the limit.
  virtual Result<std::vector<Launch>> recorded() = 0;
  virtual Result<void> end_recording() = 0;
  /// API locked. Submits it again; `drain` waits for it.
  virtual Result<void> replay(const Launch& launch) = 0;
};

}  // namespace ckpt::device
