// A process that outlives the ckpt that started it: from the moment at which the other end may let the processes go
// until it is known whether it has, they are stopped here, whatever becomes of that ckpt.
#pragma once

#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/dump.h"
#include "lib/migrate/connection.h"
#include "lib/migrate/words.h"

namespace ckpt::migrate {

/// Should its ckpt end between `stop` and `dismiss` it asks the other end: it ends the processes where they run there,
/// has them go on where they never will, and leaves them stopped where that is not told within 4 times
/// `Remote::silence_us`, or where they have run there without all of their memory.
class Watchdog {
 public:
  /// While ckpt has no other threads, and where `remote` can be reached: in the namespaces of ckpt's caller.
  static Result<Watchdog> start(const Remote& remote, const std::string& id);
  Watchdog(Watchdog&&) noexcept = default;
  Watchdog& operator=(Watchdog&&) = delete;

  /// SIGSTOP to all of them, which takes effect once nobody traces them. Those that are stopped already stay so for
  /// good.
  Result<void> stop(const engine::HandOver& what);
  /// Asks the other end until it answers, for as long as `Remote::silence_us`.
  Verdict ask();
  /// It is known what became of them.
  void dismiss();

 private:
  explicit Watchdog(UniqueFd channel) : channel_(std::move(channel)) {}
  Result<char> call(char word, int pidfd = -1) const;
  UniqueFd channel_;
};

}  // namespace ckpt::migrate
