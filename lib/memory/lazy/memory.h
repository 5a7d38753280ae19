// One address space that a lazy-pages daemon serves: what belongs where, and what is in already.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "lib/base/unique_fd.h"
#include "lib/memory/lazy/page_places.h"
#include "lib/proc/missing_pages.h"
#include "lib/store/image.h"

namespace ckpt::restore {

/// Shared or exclusive; whoever waits for it exclusively goes first (std::shared_mutex lets him starve).
class WriterFirstLock {
 public:
  WriterFirstLock() {
    pthread_rwlockattr_t how;
    pthread_rwlockattr_init(&how);
    pthread_rwlockattr_setkind_np(&how, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lock_, &how);
    pthread_rwlockattr_destroy(&how);
  }
  ~WriterFirstLock() { pthread_rwlock_destroy(&lock_); }
  WriterFirstLock(const WriterFirstLock&) = delete;
  WriterFirstLock& operator=(const WriterFirstLock&) = delete;
  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }

 private:
  pthread_rwlock_t lock_;
};

/// The kernel holds whoever forks, or changes mappings, until the report of it has been read, and refuses pages
/// meanwhile. So pages are put in place under a shared lock, and reports are read under an exclusive one: nobody acts
/// on what was true before.
class LazyPagesMemory {
 public:
  /// `space`: of its pages in the image, of which not all need be loaded before `take_blocks`. `pid` 0: unknown.
  LazyPagesMemory(const store::ImageReader& image, UniqueFd userfault, bool can_poison, int pid, int space)
      : image_(image), userfault_(std::move(userfault)), can_poison_(can_poison), pid_(pid), space_(space) {}
  /// What a fork's child has: as it is here, now. Under the exclusive lock.
  std::unique_ptr<LazyPagesMemory> fork(UniqueFd userfault) const;

  enum class Outcome {
    kDone,   ///< nothing of it is missing, or wanted, any more
    kAgain,  ///< the address space is being changed
  };
  /// The image's pages are loaded. Any thread, once.
  void take_blocks();
  /// The pages of a block that are missing. Any thread; after `take_blocks`.
  Outcome supply(size_t block);
  /// Answers an access. Any thread.
  Outcome answer(const proc::FaultMessage& fault);
  /// The processes are about to run. Until then whoever waits for a page that cannot be read is ckpt, or a process at
  /// its behest, in a wait that no signal ends: it is given zeros, and the error, kept, says that nothing of this may
  /// ever run.
  Result<void> begin_to_run();
  /// Reads reports and applies them, until there are none. `fault` and `forked` are called with what is not for us.
  template <class Fault, class Forked>
  void receive(Fault fault, Forked forked);

  /// Adds [target, target + size): as the image has it. Before anything else.
  void add(uint64_t target, uint64_t source, uint64_t size) { places_.add(target, source, size); }
  bool ended() const { return ended_.load(std::memory_order_relaxed); }
  /// Asks the kernel whether the process still has this memory.
  void look_for_end();
  /// Pages that can neither be had nor poisoned: somebody must stay and answer.
  bool must_stay() const { return must_stay_.load(std::memory_order_relaxed); }
  /// Lets go of the process: an ordinary one from here on. Nothing may be running here.
  void close() { userfault_.reset(); }
  bool closed() const { return !userfault_; }
  int userfault() const { return userfault_.get(); }
  int pid() const { return pid_; }
  size_t first() const { return first_; }
  size_t last() const { return last_; }
  uint64_t pages_in() const { return pages_in_.load(); }
  /// What went wrong, once for each block; empties it.
  std::vector<std::string> take_problems();
  bool has_problems();

 private:
  bool is_wanted(uint64_t source) const;
  size_t block_at(uint64_t source) const;
  uint16_t missing(size_t block) const;
  void mark(size_t block, uint16_t pages);
  template <class Visit>
  Outcome for_each_run(uint64_t address, uint16_t pages, Visit visit);
  template <class Put>
  Outcome put(size_t block, uint64_t target, unsigned page, unsigned count, Put put_pages);
  Outcome put_bytes(size_t block, const store::ImageReader::ResolvedBlock& about, uint16_t pages, ByteSpan bytes);
  Outcome refuse(size_t block, uint16_t pages);
  Outcome answer_early(const proc::FaultMessage& fault);
  Outcome put_nothing(const proc::FaultMessage& fault);
  Outcome fail_early(const proc::FaultMessage& fault, Error error);
  void apply(const proc::FaultMessage& message);

  const store::ImageReader& image_;
  UniqueFd userfault_;
  bool can_poison_;
  int pid_;
  int space_;
  std::atomic<bool> loaded_{false};          ///< what `take_blocks` sets is there
  size_t first_ = 0, last_ = 0;              ///< its blocks in the image
  WriterFirstLock mutex_;
  PagePlaces places_;
  std::vector<std::atomic<uint16_t>> done_;  ///< by block: pages that need nothing more
  std::atomic<bool> ended_{false}, must_stay_{false};
  bool runs_ = false;              ///< `begin_to_run` was called; by the thread that answers, as the next
  std::optional<Error> too_early_; ///< the first page that could not be read before that
  std::atomic<uint64_t> pages_in_{0};
  std::mutex problems_mutex_;
  std::vector<std::string> problems_;
};

template <class Fault, class Forked>
void LazyPagesMemory::receive(Fault fault, Forked forked) {
  std::unique_lock lock(mutex_);
  std::array<proc::FaultMessage, 32> messages;
  while (size_t count = proc::read_faults(userfault_.get(), messages)) {
    for (size_t i = 0; i < count; ++i) {
      if (messages[i].kind == proc::FaultMessage::Kind::kFault) fault(messages[i]);
      else if (messages[i].kind == proc::FaultMessage::Kind::kFork) forked(fork(UniqueFd(messages[i].child)));
      else apply(messages[i]);
    }
  }
}

}  // namespace ckpt::restore
