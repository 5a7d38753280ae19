// Several copies of one image side by side (restore --copies): each in a process tree of ckpt's of its own, made one
// after another, then let go all at once, or none.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/engine/restore.h"

namespace ckpt::engine {

/// What copies that are forked from here on share until they write to it (lib/memory/common.h). It is here until
/// `memory` is dropped.
struct CommonPages {
  std::shared_ptr<const restore::CommonMemory> memory;
  uint64_t bytes = 0;
};
Result<CommonPages> read_common_pages(const RestoreOptions& options, ProgressSink& progress, const Cancel& cancel);

/// What the maker of one copy has to do with the others: in its own process, or in one that it forks.
class CopyLink {
 public:
  int number() const { return number_; }  ///< from 1
  /// The copy is made and stands still; back once all do and are let go. An error: one of the others is not. `init`:
  /// the process, as ckpt's caller sees it, with which everything of the copy ends.
  Result<void> made(int init);
  /// What `CopiesRun::running` gets, once it runs. Nobody may be there to hear it: it runs all the same.
  void runs(const std::string& report);
  /// What `CopiesRun::ended` gets.
  void ended(const std::string& report);
  /// Instead of all that.
  void failed(const Error& error);

 private:
  friend class CopyMakers;
  CopyLink(int number, UniqueFd link, UniqueFd go) : number_(number), link_(std::move(link)), go_(std::move(go)) {}
  bool send(char kind, const std::string& text);

  int number_;
  UniqueFd link_, go_;
};

struct CopiesRun {
  int count = 0;
  bool detach = false;                     ///< return once all run, else when all have ended
  std::function<int(CopyLink&)> make;      ///< runs in a process of its own, which ends with its result
  std::function<void()> drop;              ///< called in the caller once all are made: what only the making needs
  std::function<void()> gone;              ///< called once they have been let go: what they do from then on stays
  std::function<void(const std::vector<std::string>& reports)> running;  ///< all have been let go, by number
  std::function<void(int number, const std::string& report)> ended;
};

/// 0, or the first result of a maker, by number, that is not. On an error nothing is left of any copy. Killed before
/// they are let go, ckpt leaves nothing either; afterwards, they run. Call it from a process without other threads.
Result<int> run_copies(const CopiesRun& run, const Cancel& cancel);

/// The caller's hostname gets "-N" behind it, in a UTS namespace of its own. Needs CAP_SYS_ADMIN.
Result<std::string> name_host_after(int copy);
/// In the caller's mount namespace, which must be its own: `path`, which must be a file, shows "N\n" instead.
Result<void> show_number(const std::filesystem::path& path, int copy);
/// Queues the signal with the number as its value. It may stand still.
Result<void> signal_number(int pid, int signal, int copy);

}  // namespace ckpt::engine
