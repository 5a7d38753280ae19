// Keys (keyrings(7)): those that a thread or a process has for itself, and those of its session. They are known by
// numbers that the kernel chooses, what some hold it tells nobody, nor when they expire: no restore makes them again.
#pragma once

#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/proc/call_batch.h"

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

/// What the first thread is asked of its session's keyring.
class SessionKeyQuestions {
 public:
  explicit SessionKeyQuestions(proc::CallList& calls);
  /// Adds a note where the session has keys that a restore will not find: others than those of its user, which are the
  /// host's, and another keyring than ckpt's.
  void take(const proc::CallList& calls, std::vector<std::string>& notes) const;

 private:
  size_t ring_, keys_, user_, user_session_;
};

}  // namespace ckpt::capture
