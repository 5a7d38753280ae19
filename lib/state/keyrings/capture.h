// Keys (keyrings(7)): those that a thread or a process has for itself, and those of its session. They are known by
// numbers that the kernel chooses, what some hold it tells nobody, nor when they expire: no restore makes them again.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"
#include "lib/proc/procfs.h"

namespace ckpt::capture {

/// What each stopped thread is asked: what its own keyring and that of its process hold.
class KeyQuestions {
 public:
  explicit KeyQuestions(proc::CallList& calls);
  /// kUnsupported: they hold some.
  Result<void> refuse_keys(const proc::CallList& calls, int tid) const;

 private:
  size_t thread_, process_;
};

/// What the first thread is asked of its session's keyring. The question alone gives it one where it has none
/// (lookup_user_key of the kernel installs that of its user): only those are asked who stay that user.
class SessionKeyQuestions {
 public:
  SessionKeyQuestions(proc::CallList& calls, const proc::Status& status);
  /// Adds a note where the session has keys that a restore will not find: others than those of its user, which are the
  /// host's, and another keyring than ckpt's.
  void take(const proc::CallList& calls, std::vector<std::string>& notes) const;

 private:
  bool asked_;
  size_t ring_ = 0, keys_ = 0, user_ = 0, user_session_ = 0;
};

}  // namespace ckpt::capture
