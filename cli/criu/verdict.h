// An error that a worker process hands to the one that tells of it.
#pragma once

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"

namespace ckpt::cli::criu {

/// Made before the fork. What was not set is "the worker was ended".
class Verdict {
 public:
  Verdict();
  void set(const Error& error) const;
  Error get() const;

 private:
  UniqueFd fd_;
};

}  // namespace ckpt::cli::criu
