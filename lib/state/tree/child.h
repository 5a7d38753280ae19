// A process while it is being built: a child of ckpt, or of another such process, with the pid of the image, traced,
// every thread stopped.
#pragma once

#include <sys/user.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/state/tree/held_memory.h"
#include "lib/state/tree/syscall_batch.h"
#include "lib/store/process_image.h"

namespace ckpt::restore {

/// The numbers of a process or thread that is to be made: that in ckpt's pid namespace first, then those in each
/// further one that it is in.
struct Numbers {
  Numbers(int number) : all(number == 0 ? std::vector<int>() : std::vector<int>{number}) {}  // NOLINT: one, or any
  Numbers(int number, const std::vector<int>& inner) : all{number} {
    all.insert(all.end(), inner.begin(), inner.end());
  }
  /// Those of the innermost alone are chosen, the kernel gives out the others.
  static Numbers innermost(std::vector<int> chosen) {
    Numbers out(0);
    out.all = std::move(chosen), out.whole = false;
    return out;
  }
  std::vector<int> all;  ///< the innermost last; empty: any
  bool whole = true;
};

/// It may have children of its own, built like it. Owned by the thread that made it. It is attached with
/// PTRACE_O_EXITKILL and its destructor kills and reaps it, so that neither a failure nor the death of ckpt leaves half
/// a process; `release` is the good end.
class Child {
 public:
  /// clone3 with set_tid. The child holds a copy of ckpt's address space and descriptors, all signals but SIGTRAP
  /// blocked (a batch ends with one), every handler at its default, no rseq registration.
  enum class Parent { kCkpt, kStandIn, kCallers };
  /// kCallers: the parent of ckpt is its parent, too. kStandIn: a helper process is the parent, until `leave_parent`
  /// ends it and the child goes to init: ckpt's own end then means nothing to it.
  static Result<Child> create(int pid, RestorerArea& area, Parent parent = Parent::kCkpt);
  /// The stand-in of another one, whose parent is the parent of this one, too.
  void take_stand_in(Child& other) { stand_in_ = std::exchange(other.stand_in_, -1); }
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  /// A child of this one (with CLONE_PARENT in `flags`: of its parent), attached like it and standing at its first
  /// instruction. With CLONE_NEWPID it is the first one of a pid namespace.
  Result<Child> fork(const Numbers& numbers, uint64_t flags, int exit_signal);
  /// What it makes from then on is born in the pid namespace of process `member`, as this one has it.
  Result<void> enter_pid_namespace(int member);
  /// Ends by itself with a status as wait(2) gives it, SIGKILL for instance. It is then a zombie of its parent's.
  Result<void> end(int status);
  /// Every thread into a group-stop, as `signal` (SIGSTOP, SIGTSTP, ...) does it; `go_on`: and out of it again, as by
  /// SIGCONT. Its registers are final. Its parent gets to know. SIGSTOP does it where the other signal would be ignored
  /// (an orphaned group).
  Result<void> stop_as_by_signal(int signal, bool go_on);
  /// The pid of its parent.
  Result<int> parent() const;

  /// What its address space holds, and that of a child which it forks from then on; null: ckpt's own.
  const HeldMemory* held() const { return held_.get(); }
  void hold(HeldMemory memory) { held_ = std::make_shared<const HeldMemory>(std::move(memory)); }

  int pid() const { return pid_; }
  /// All of its numbers, the one that ckpt knows it by first.
  const std::vector<int>& numbers() const { return numbers_; }
  /// The leader first.
  const std::vector<int>& threads() const { return threads_; }
  RestorerArea& area() { return *area_; }

  /// Runs a batch in the leader.
  Result<void> run(SyscallBatch& batch) { return run(pid_, batch); }
  Result<void> run(int tid, SyscallBatch& batch);
  /// Runs batches in several threads at once: start them all, then wait for each.
  struct Task {
    int tid;
    SyscallBatch* batch;
  };
  Result<void> run_all(const std::vector<Task>& tasks);

  /// One more thread with these numbers; it stands at its first instruction. Call `await_threads` after a batch.
  void add_thread(SyscallBatch& batch, const Numbers& numbers);
  Result<void> await_threads(const std::vector<int>& tids);
  /// A thread that is not the leader.
  Result<void> end_thread(int tid);

  /// One system call without a table: the thread ends up in a trap stop inside the kernel, and no signal was
  /// needed to get it there. `instruction`: the address of a `syscall` instruction. A call that sleeps is interrupted
  /// at once.
  Result<int64_t> call_once(int tid, uint64_t instruction, const Call& call);
  /// Runs code that ends in int3 with rbx = `argument`.
  Result<void> run_code(int tid, uint64_t code, uint64_t argument);

  /// With a stand-in: its end makes the child an orphan. The child's own parent death signal must not be set yet.
  void leave_parent();

  /// Lets every thread go. After this it is an ordinary child (or orphan) and nothing here touches it any more.
  Result<void> release();

 private:
  Result<bool> enter_stop(int signal);
  Child(std::vector<int> numbers, RestorerArea& area)
      : pid_(numbers.front()), numbers_(std::move(numbers)), area_(&area) {}
  Result<std::vector<int>> find_child(int number) const;
  Result<void> attach();
  Result<const Call*> start(int tid, const SyscallBatch& batch);
  Result<void> finish(int tid, SyscallBatch& batch, const Call* table);

  int pid_;
  std::vector<int> numbers_;
  RestorerArea* area_;
  std::vector<int> threads_;
  std::shared_ptr<const HeldMemory> held_;
  int stand_in_ = -1;
};

/// A process of ckpt's that has a number, so that nobody else gets it.
class HeldNumber {
 public:
  /// kBusy: it is taken.
  static Result<HeldNumber> hold(int number);
  HeldNumber(HeldNumber&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  HeldNumber& operator=(HeldNumber&&) = delete;
  ~HeldNumber() { free(); }
  void free();

 private:
  explicit HeldNumber(int pid) : pid_(pid) {}
  int pid_;
};

/// What ckpt starts from here on gets other numbers than those of the tree, as far as that can be arranged.
Result<void> step_over_numbers(const store::TreeImage& tree);

inline constexpr const char* kNumbersHint =
    "with --new-pidns it is restored in a pid namespace of its own, where all numbers are free";

/// The process that holds a pid, thread id, process group or session number: "1234 (bash)", with its parent if it is a
/// zombie; empty when nobody does.
std::string holder_of(int number);

}  // namespace ckpt::restore
