// What holds a restore at the receiver until the source says that it may go on.
#pragma once

#include <optional>
#include <string>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/migrate/claim.h"

namespace ckpt::migrate {

/// Messages of the pair of sockets between the receiver and its restore.
enum class PermitWord : char {
  kMade = 'm',  ///< with "PID PID", inside and outside: all of them stand still
  kGo = 'g',    ///< with " PID START" of each, as the receiver sees them: their clock may be another one
  kRuns = 'r',
};

/// Bytes of the longest word: some ten thousand processes.
inline constexpr size_t kMostGo = 192 << 10;

/// In the restore.
class Permit {
 public:
  /// "FD,ID,NAMESPACE": the socket, and what a claim has to say.
  static std::string describe(int socket, const std::string& id);
  /// What `describe` gave. The socket is not to be inherited any further.
  /// `lazily`: as for a claim.
  static Result<Permit> open(const std::string& text, bool lazily);
  /// Waits for the word that the processes may be let go, and takes the claim. kInterrupted: they may not.
  Result<void> may_run(int pid, int pid_outside, const Cancel& cancel);
  /// They have been.
  void runs();

 private:
  Permit() = default;
  UniqueFd socket_;
  std::string id_, pid_namespace_;
  bool lazily_ = false;
  std::optional<Claim> claim_;
};

}  // namespace ckpt::migrate
