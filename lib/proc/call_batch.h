// System calls made in the target by many of its threads, each making all of its calls in one go.
//
// A call of a BorrowedThread costs two stops of the thread and four changes between it and ckpt. Here a thread gets a
// table of calls, works through it on its own and stops once, at its end; and as many threads as the parasite area
// has room for do so at the same time. With 1,000 threads that is what a frozen window is made of.
//
// How a thread stops: its last call sends itself a signal that the process ignores. A traced thread reports even that
// to its tracer; an abandoned one (ckpt was killed) never sees it, and goes on to the rt_sigreturn that restores it.
#pragma once

#include <sys/user.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "lib/proc/borrowed_thread.h"
#include "lib/proc/call_table.h"

namespace ckpt::proc {

/// Which arguments of a call are offsets into its room.
inline constexpr unsigned kFirst = 1, kSecond = 2, kThird = 4;

/// The calls that one thread is to make, and what they answered.
class CallList {
 public:
  using Arguments = BorrowedThread::Arguments;
  /// The number by which to ask for the answer. `room`: bytes for the call to write to, zeros before it; the arguments
  /// whose bits are set in `in_room` are offsets into it. `what` names the call in messages.
  size_t add(const char* what, long number, const Arguments& arguments = {}, size_t room = 0, unsigned in_room = 0);

  /// Negative is -errno.
  int64_t result(size_t call) const { return calls_[call].row.result; }
  /// A negative result is an Error.
  Result<uint64_t> value(size_t call) const;
  /// What the call wrote at the start of its room.
  template <class T>
  T written(size_t call) const {
    T out{};
    std::memcpy(&out, rooms_.data() + calls_[call].room_at, sizeof out);
    return out;
  }
  template <class T>
  Result<T> answer(size_t call) const {
    CKPT_TRY(value(call));
    return written<T>(call);
  }

 private:
  friend class CallBatch;
  struct Call {
    const char* what;
    RemoteCall row;  ///< with offsets where an argument is in the room
    unsigned in_room;
    size_t room_at, room_size;

    RemoteCall with_room_at(uint64_t rooms) const;
  };
  std::vector<Call> calls_;
  std::vector<std::byte> rooms_;
};

/// A stopped thread and its state: what PTRACE_GETREGSET and PTRACE_GETSIGMASK say of it.
struct BatchedThread {
  int tid = 0;
  int own_pid = 0, own_tid = 0;  ///< as it knows its process and itself; 0: as ckpt does
  user_regs_struct regs{};
  uint64_t mask = 0;
  const std::vector<std::byte>* xstate = nullptr;
  CallList calls;
};

class CallBatch {
 public:
  /// A signal that is ignored by a process with these sets of signals (bit 0 is signal 1), and that is not pending
  /// anywhere in it; 0: there is none.
  static int choose_signal(uint64_t caught, uint64_t ignored, uint64_t pending);

  /// `signal` 0: one call after the other, with two stops for each.
  CallBatch(const ParasiteArea& area, int signal) : area_(area), signal_(signal) {}
  CallBatch(CallBatch&&) = delete;
  CallBatch& operator=(CallBatch&&) = delete;
  ~CallBatch();

  /// Fills the results. Every thread is stopped again afterwards, with the registers and the mask that it had; after an
  /// Error too, as far as it is still there.
  Result<void> run(std::span<BatchedThread> threads);

 private:
  struct Slot {
    BatchedThread* thread;
    uint64_t frame = 0, table = 0, rooms = 0, end = 0;  ///< offsets in the area
    enum { kLaidOut, kAtEntry, kRunning, kThrough, kGone } state = kLaidOut;
  };
  bool lay_out(BatchedThread& thread, uint64_t& at, std::vector<std::byte>& image);
  Result<void> run_group(const std::vector<std::byte>& image);
  Result<void> start(Slot& slot);
  Result<void> await(Slot& slot);
  Result<void> restore(Slot& slot);
  Result<void> run_one_by_one(BatchedThread& thread);
  void tidy_up();

  const ParasiteArea& area_;
  int signal_;
  bool foreign_ = false;  ///< somebody else has sent the signal, too
  HeldStop held_;
  std::vector<Slot> slots_;
};

}  // namespace ckpt::proc
