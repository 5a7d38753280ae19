// Settings of live sockets that are changed for a moment. ckpt may be killed at any moment: a small process that shares
// its descriptor table then puts them back.
#pragma once

#include <cstddef>
#include <utility>

#include "lib/base/result.h"

namespace ckpt::capture {

class OptionGuard {
 public:
  /// `capacity`: how many settings can be out at once. The process is made here.
  static Result<OptionGuard> create(size_t capacity);
  OptionGuard(OptionGuard&& other) noexcept
      : slots_(std::exchange(other.slots_, nullptr)),
        capacity_(other.capacity_),
        pid_(other.pid_),
        watched_(other.watched_) {}
  OptionGuard& operator=(OptionGuard&&) = delete;
  /// Everything must have been put back, or be meant to stay: the process ends without doing anything.
  ~OptionGuard();

  /// To be called before the change: from now on the setting counts as changed. Returns a number for `forget`.
  size_t remember(int fd, int level, int option, int before);
  /// To be called once it has been put back, or is meant to stay.
  void forget(size_t slot);
  /// Of the process, for tests.
  int pid() const { return pid_; }

 private:
  struct Slot {
    int fd, level, option, before;
    int active;
  };
  OptionGuard(Slot* slots, size_t capacity, int pid, int watched)
      : slots_(slots), capacity_(capacity), pid_(pid), watched_(watched) {}
  [[noreturn]] static void watch(int owner, const Slot* slots, size_t capacity);
  Slot* slots_;
  size_t capacity_;
  int pid_;
  int watched_;  ///< pidfd of ckpt, in the table that both share
};

}  // namespace ckpt::capture
