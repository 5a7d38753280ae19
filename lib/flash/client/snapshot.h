// A copy of memory as it is at one instant, made behind a program that goes on: pages are write-protected, and what the
// program writes to is copied first.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lib/base/unique_fd.h"
#include "lib/flash/client/copy.h"

namespace ckpt::flash {

/// The memory that is copied stays mapped until `wait` has returned. Its pages belong to the parts alone but for the
/// first and the last of each, which are copied at once: nobody who copies has anything in a protected page.
class Snapshot {
 public:
  /// Protects what can be protected, copies the rest, and returns; `done` is called by another thread once all is
  /// copied, unless `wait` was asked to give up. Null: this kernel or this user cannot do it, nothing was done.
  static std::unique_ptr<Snapshot> begin(const std::vector<CopyPart>& parts, unsigned threads,
                                         std::function<void()> done);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  void wait();
  bool finished() const { return finished_.load(); }
  /// Bytes that were not copied before `begin` returned.
  uint64_t protected_bytes() const { return protected_bytes_; }

 private:
  /// What is copied, and let go, in one go.
  struct Unit {
    std::byte* from;
    std::byte* to;
    uint64_t bytes;
  };
  struct Range {
    std::byte* from;
    uint64_t bytes;
    size_t first;  ///< of its units
  };
  Snapshot() = default;
  bool protect(const CopyPart& part);
  void copy_units();
  void copy(size_t unit);
  void serve();
  void serve_fault(uint64_t address);
  void unprotect(const Unit& unit) const;

  UniqueFd fault_, stop_;
  std::vector<Range> ranges_;  ///< by address
  std::vector<Unit> units_;
  std::vector<std::atomic<uint8_t>> states_;  ///< 0 to do, 1 being copied, 2 done
  std::atomic<size_t> next_{0};
  std::vector<std::thread> copiers_;
  std::thread server_, finisher_;
  std::atomic<bool> finished_{false};
  uint64_t protected_bytes_ = 0;
};

}  // namespace ckpt::flash
