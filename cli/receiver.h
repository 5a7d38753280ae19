// What `ckpt receive` does for one migration.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/job.h"
#include "lib/migrate/claim.h"
#include "lib/migrate/link.h"
#include "lib/migrate/page_desk.h"
#include "lib/migrate/stall.h"
#include "lib/migrate/stage.h"
#include "lib/migrate/words.h"

namespace ckpt::cli {

/// The processes are made by a `ckpt restore` of its own, which holds them until the source says that they may run, and
/// which this one outlives: so that there is somebody to say what became of them.
class Receiver {
 public:
  Receiver(migrate::Link& link, migrate::Hello hello, Context& context)
      : link_(link), hello_(std::move(hello)), context_(context) {}
  /// Until the processes run here, and the source has ended. On failure nothing of them is left.
  Result<void> run();

 private:
  Result<void> take_image();
  Result<void> make();
  std::vector<std::string> restore_words(int permit) const;
  Result<bool> step(CkptRun& restore, SignalQueue& signals);
  Result<bool> hear_gate();
  Result<void> hear_source();
  Result<bool> look_back(CkptRun& restore);
  bool has_word_that_they_run();
  Result<bool> give_up_on(CkptRun& restore);
  Result<void> finish(CkptRun& restore, SignalQueue& signals);
  Result<void> check_room() const;
  bool lazy() const { return hello_.wishes.lazy_silence_us != 0; }
  Result<void> hear_desk();
  Result<void> take_later(const migrate::Frame& frame);
  Result<void> await_pages(SignalQueue& signals);
  Result<void> beat(uint64_t& said_us, uint64_t every_us);
  Result<void> await_memory();
  Result<void> check_daemon() const;
  void lose();
  Result<void> check_silence(bool heard);
  void part();

  migrate::Link& link_;
  const migrate::Hello hello_;
  Context& context_;
  UniqueFd gate_;
  std::optional<migrate::Stage> stage_;
  std::optional<migrate::PageDesk> desk_;          ///< lazily: of those who need pages
  std::vector<migrate::Claim::Process> processes_; ///< that were let go, at least
  std::set<std::string> namespaces_;  ///< pid namespaces of theirs alone
  uint64_t made_at_us_ = 0;  ///< 0: not yet
  uint64_t heard_us_ = 0;    ///< when the source last said something, or was owed no page
  int outside_ = 0;          ///< the first of the processes made, as it is seen here
  bool going_ = false;       ///< the restore may let them go
  std::optional<migrate::StallWatch> stall_;  ///< of the restore, from then on
};

}  // namespace ckpt::cli
