// System V objects made again under their old ids, in ckpt.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/reasons.h"
#include "lib/state/system_v_ipc/record.h"
#include "lib/state/tree/syscall_batch.h"

namespace ckpt::restore {

/// kBusy, as from IpcObjects::make, without making anything.
void check_ipc(const store::SystemVIpc& image, Reasons& reasons);

/// The objects of one image. Those that still exist (a dump ends processes, not these) are used again and set back to
/// what the image says; the others are made, and removed again by the destructor unless `keep` was called.
class IpcObjects {
 public:
  IpcObjects() = default;
  IpcObjects(const IpcObjects&) = delete;
  IpcObjects& operator=(const IpcObjects&) = delete;
  ~IpcObjects();

  /// kBusy: an id or key belongs to something else by now. Segments come without content; semaphores and queues are
  /// complete. Nothing that existed is changed unless everything can be had: call `set_back` once `reasons` is empty.
  void make(const store::SystemVIpc& image, Reasons& reasons);
  Result<void> set_back();

  /// Once every process has attached its segments and the claims are made: removes those that were removed, which then
  /// last as long as they are attached.
  Result<void> keep();

 private:
  enum class Kind { kSegment, kSet, kQueue };
  struct Made {
    Kind kind;
    int id;
  };
  Result<void> make_segment(const store::SharedSegment& segment);
  Result<void> make_set(const store::SemaphoreSet& set);
  Result<void> make_queue(const store::IpcQueue& queue);
  template <class Make>
  Result<void> make_object(Kind kind, const store::IpcIdentity& wanted, Make make);

  const store::SystemVIpc* image_ = nullptr;
  std::vector<Made> made_;
};

/// A segment attached in ckpt, to be filled.
class AttachedSegment {
 public:
  static Result<AttachedSegment> attach(const store::SharedSegment& segment);
  AttachedSegment(AttachedSegment&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_(other.size_) {}
  AttachedSegment& operator=(AttachedSegment&&) = delete;
  ~AttachedSegment();
  /// Whole pages.
  std::byte* data() const { return memory_; }
  uint64_t size() const { return size_; }

 private:
  AttachedSegment(std::byte* memory, uint64_t size) : memory_(memory), size_(size) {}
  std::byte* memory_;
  uint64_t size_;
};

/// The bytes of a segment, empty, to be written with pwrite.
Result<UniqueFd> open_to_fill(const store::SharedSegment& segment);

/// In the process: all of the segment at its old address, which is free. What the process had unmapped of it is for the
/// caller to unmap again, and so is the protection.
void attach_segment(const store::SharedSegment& segment, uint64_t address, bool read_only, SyscallBatch& batch);

/// The kernel notes who used a semaphore last and who sent and received a queue's last message, which also is what ties
/// them to a tree. These batches make it as it was, in the process `pid` of `pids` (sorted): first `claim_ipc` in every
/// process, then `adjust_semaphores`, then `finish_claims` in every process, then `IpcObjects::keep`. After `set_back`.
void claim_ipc(const store::SystemVIpc& image, int pid, const std::vector<int>& pids, RestorerArea& area,
               SyscallBatch& batch);
/// Between the two, in every process: its adjustments of semaphores (SEM_UNDO), which whoever sets a value clears.
void adjust_semaphores(const store::SystemVIpc& image, int process, RestorerArea& area, SyscallBatch& batch);
void finish_claims(const store::SystemVIpc& image, int pid, RestorerArea& area, SyscallBatch& batch);

}  // namespace ckpt::restore
