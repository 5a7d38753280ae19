// Whether processes that put something back still get on, as far as the kernel counts what they do.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace ckpt::migrate {

/// `root` and its descendants. They get on while any of them reads or writes, or has a processor for more than a
/// hundredth of the time: a call to a file system that does not answer does neither, and nor does a program that looks
/// at a clock meanwhile. One of which that is not to be seen is taken for one that does.
class StallWatch {
 public:
  StallWatch(pid_t root, uint64_t limit_us);
  /// To be asked some times a second. True: they have got on with nothing for as long as the limit.
  bool stalled();
  /// Something came about that is not to be seen there.
  void got_on();

 private:
  struct Work {
    uint64_t bytes = 0, ran_us = 0;
    bool hidden = false;  ///< of one that lives, in part
  };
  Work look() const;

  pid_t root_;
  uint64_t limit_us_, since_us_;
  Work last_;
};

/// SIGKILL for `root` and whoever traces these, who alone can let them go. True: they have ended. False: a moment later
/// they have not, and do nothing but what the kernel is at.
bool kill_who_lets_go(pid_t root, const std::vector<pid_t>& traced);
/// SIGKILL for `root`, its descendants, and whoever traces these: from here on they do nothing but what the kernel is
/// at. Those that are stopped and traced end by it, too.
void kill_restore(pid_t root, const std::vector<pid_t>& traced);

}  // namespace ckpt::migrate
