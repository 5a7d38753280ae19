// POSIX message queues opened or made again, in ckpt.
#pragma once

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/system_v_ipc/record.h"

namespace ckpt::restore {

/// One queue; `open` gives a descriptor of it for every open file description.
class PosixQueueBuilder {
 public:
  /// A queue with a name is opened as it stands; one that is missing is made, if no message waited in it (else
  /// kNotFound). kMismatch: of that name there is one with another size. One that was unlinked is made with its
  /// messages and unlinked again.
  static Result<PosixQueueBuilder> make(const store::PosixQueue& queue);
  /// `flags`: access mode and O_NONBLOCK.
  Result<UniqueFd> open(int flags) const;

 private:
  explicit PosixQueueBuilder(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace ckpt::restore
