// The lazy-pages daemon of a lazy restore: a process of its own ("ckpt-lazy") that gives processes which run already
// the pages that they ask for, brings in the others meanwhile, those first that are likely to be wanted, and ends when
// all are in.
#pragma once

#include <filesystem>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/memory/lazy/log.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Memory that is supplied on demand.
struct PagedMemory {
  int pid = 0;
  int space = -1;      ///< of its pages in the image
  UniqueFd userfault;  ///< watches `ranges`; reports are on
  bool can_poison = false;
  std::vector<Range> ranges;
  std::vector<uint64_t> hot;  ///< addresses that are wanted at once: stacks, code, thread areas
};

class LazyPagesDaemon {
 public:
  /// Forks; ckpt has one thread. `image`: loaded sparsely at least. The daemon keeps what `image` reads from, the
  /// userfaultfds and the log, and nothing else of ckpt's, so that ckpt can end. It is in a process group of its own,
  /// and has all signals blocked.
  static Result<LazyPagesDaemon> start(store::ImageReader& image, std::vector<PagedMemory> memories, LazyPagesLog log);
  /// Before a process may run, and nothing of its memory is touched by ckpt any more: it serves, guarded and with its
  /// threads, and no page that was asked for so far was one that could not be read, for which there were zeros
  /// (kCorrupt, kIo).
  Result<void> await();
  /// The processes run: from here on the daemon brings in what nobody asks for, too. So does the end of ckpt.
  void released() { go_.reset(); }
  int pid() const { return pid_; }

 private:
  int pid_ = -1;
  UniqueFd ready_, go_;
};

}  // namespace ckpt::restore
