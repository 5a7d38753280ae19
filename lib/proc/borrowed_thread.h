// System calls made in the target, by one of its own threads.
//
// Some state can be read (and a snapshot be made) only from inside. A stopped thread is borrowed for as short as
// possible: its registers are put aside, it runs a `syscall` instruction, and gets its registers back. All signals are
// blocked meanwhile.
//
// If ckpt is killed in that window the kernel lets the thread run on as it stands. So every call is followed by
// rt_sigreturn over a guard frame, a signal frame that holds the thread's true state: an abandoned thread finishes the
// call, then restores itself. The calls are made from a parasite area; the two that make and remove it run like a
// signal handler, from the target's own code with the frame below its stack pointer. A thread that is on a stack of the
// program's own (a coroutine's, of some KiB in the heap) may have no room there, and what lies below belongs to
// somebody else: its frame goes to the unused end of the first thread's stack.
#pragma once

#include <sys/user.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/proc/call_table.h"
#include "lib/proc/procfs.h"
#include "lib/proc/ptrace.h"

namespace ckpt::proc {

/// Pieces of the target's own code.
struct Gadgets {
  RemoteAddress syscall{0};    ///< `syscall`, in the vdso where there is one
  RemoteAddress returning{0};  ///< `syscall; ret`, 0: none. Every libc has it
  RemoteAddress sigreturn{0};  ///< `mov $15, %rax; syscall`, which libc gives the kernel as SA_RESTORER. 0: none
  /// The first thread's stack as it was seen; it may have grown since. Both 0: there is none of that name.
  RemoteAddress stack_low{0}, stack_high{0};
};
/// True while the code found earlier is still there. Finding it takes milliseconds, which a stopped target need not
/// wait.
bool still_hold(int pid, const Gadgets& gadgets);
/// kUnsupported when there is not even a `syscall`.
Result<Gadgets> find_gadgets(int pid, const std::vector<Vma>& maps);
inline Result<RemoteAddress> find_syscall_instruction(int pid, const std::vector<Vma>& maps) {
  CKPT_TRY_ASSIGN(Gadgets found, find_gadgets(pid, maps));
  return found.syscall;
}

/// A private mapping in the target (64 KiB): code, the guard frame, room for arguments and results.
class ParasiteArea {
 public:
  /// `tid` is stopped. Every thread of the process may then be borrowed through this mapping, one after the other.
  static Result<ParasiteArea> map(int pid, int tid, const Gadgets& gadgets);
  ParasiteArea(ParasiteArea&& other) noexcept;
  ParasiteArea& operator=(ParasiteArea&&) = delete;
  /// Unmaps if `unmap` was not called; a target that runs or has ended is left alone.
  ~ParasiteArea();

  /// The good end: the mapping disappears from the target. `tid` is stopped.
  Result<void> unmap();

  int pid() const { return pid_; }
  RemoteAddress start() const { return start_; }
  /// Where arguments and results go; `kRoom` bytes.
  RemoteAddress buffer() const { return start_ + kBufferAt; }
  static constexpr uint64_t kSize = 64 * 1024, kFrameAt = 4096, kBufferAt = 32 * 1024, kRoom = kSize - kBufferAt;

 private:
  friend class BorrowedThread;
  ParasiteArea(int pid, int tid, const Gadgets& gadgets) : pid_(pid), tid_(tid), gadgets_(gadgets) {}
  int pid_, tid_;
  Gadgets gadgets_;
  RemoteAddress start_{0};
};

/// SIGSTOP cannot be blocked: one that comes, or that was waiting, while a thread is borrowed is kept from it and sent
/// again.
class HeldStop {
 public:
  void take() { taken_ = true; }
  /// Idempotent. `pid` is frozen. A SIGCONT that has come since makes it void, as it does in the kernel.
  void give_back(int pid);

 private:
  bool taken_ = false;
};

class BorrowedThread {
 public:
  /// `tid` is stopped by this thread of ckpt.
  static Result<BorrowedThread> begin(const ParasiteArea& area, int tid);
  BorrowedThread(BorrowedThread&& other) noexcept;
  BorrowedThread& operator=(BorrowedThread&&) = delete;
  ~BorrowedThread();

  using Arguments = CallArguments;
  /// The raw result: negative is -errno. An Error means that the thread is gone.
  Result<int64_t> call(long number, const Arguments& arguments = {});
  /// As `call`, and a negative result is an Error named after `what`.
  Result<uint64_t> call_ok(const char* what, long number, const Arguments& arguments = {});
  /// Moves the descriptor that the call makes to ckpt: the process keeps none, also where ckpt is killed meanwhile.
  Result<UniqueFd> take_new_fd(const char* what, int pidfd, long number, const Arguments& arguments);
  /// Writes `data` at the start of the buffer and returns its address.
  Result<RemoteAddress> put(ByteSpan data);
  Result<void> get(MutableByteSpan out);

  /// fork without a signal on exit (exit signal 0): the child is a frozen copy of all private memory that fork copies,
  /// attached to us, stopped before its first instruction, and killed by the kernel should ckpt die.
  Result<int> fork_frozen();

  /// The good end: registers and signal mask as they were. The thread is still stopped.
  Result<void> finish();

 private:
  BorrowedThread(const ParasiteArea& area, int tid) : area_(&area), tid_(tid) {}
  friend class ParasiteArea;
  /// One call of a thread that is not borrowed, without the parasite area.
  static Result<int64_t> lone_call(const ParasiteArea& area, long number, const Arguments& arguments);
  Result<bool> lay_guard_frame(const Gadgets& gadgets);
  Result<uint64_t> place_of_guard_frame(const Gadgets& gadgets, uint64_t size) const;
  Result<void> set_entry(RemoteAddress instruction, RemoteAddress stack);
  Result<void> step(Stop& stop);
  Result<int64_t> run(RemoteAddress instruction, RemoteAddress stack, long number, const Arguments& arguments,
                      int* child);
  Result<int64_t> run(uint64_t code, long number, const Arguments& arguments, int* child);

  const ParasiteArea* area_;
  int tid_;
  bool active_ = false;
  HeldStop held_;
  user_regs_struct regs_{};
  uint64_t mask_ = 0;
  RemoteAddress guard_{0};              ///< lone calls: where the frame lies on the thread's stack
  std::vector<std::byte> under_guard_;  ///< what was there
};

}  // namespace ckpt::proc
