// A copy of memory as it is at one instant, made behind a program that goes on: pages are moved away or
// write-protected, and what the program touches, or writes to, is copied first.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/unique_fd.h"
#include "lib/flash/client/copy.h"
#include "lib/flash/client/fork_gate.h"
#include "lib/flash/client/moved_pages.h"

namespace ckpt::flash {

/// The memory that is copied stays mapped until `wait` has returned. Its pages belong to the parts alone but for the
/// first and the last of each, which are copied at once: nobody who copies has anything in a page that is held.
///
/// Private anonymous memory is moved away (moved_pages.h), and what the program touches comes back once it is copied;
/// other memory (tensors of torch.multiprocessing, what was loaded and is mapped) is write-protected, and may be read
/// meanwhile. Forks wait until all is let go.
class Snapshot {
 public:
  /// Holds what can be held, copies the rest, and returns; `done` is called by another thread once all is copied. Null:
  /// this kernel or this user cannot do it, nothing was done.
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
    std::byte* home;
    std::byte* to;
    uint64_t bytes;
    size_t range;  ///< that it belongs to
  };
  struct Range {
    std::byte* home;
    uint64_t bytes;
    size_t first;     ///< of its units
    bool moves;       ///< or else is write-protected in its place
    std::byte* away;  ///< where it was moved to
  };
  Snapshot() = default;
  bool open();
  bool hold(const CopyPart& part, const Mappings& mappings);
  bool register_for(uint64_t mode, const Range& range) const;
  bool move_or_protect(unsigned threads);
  bool protect(unsigned threads) const;
  void start_copiers(unsigned threads, std::function<void()> done);
  void copy_units();
  void copy(size_t unit, bool in_order);
  void let_go(const Unit& unit, bool in_order);
  bool has_spare_mappings();
  void close();
  void serve();
  void serve_fault(uint64_t address);
  void tell_server(std::atomic<bool>& what);

  NoForks no_forks_;
  UniqueFd fault_, news_;  ///< news: an eventfd, told when one of the next two becomes true
  std::atomic<bool> held_{false}, ending_{false};
  bool protects_ = false;  ///< the kernel write-protects pages that nobody has touched, too (Linux 6.4)
  std::vector<Range> ranges_;  ///< by address
  std::vector<Unit> units_;
  std::vector<std::atomic<uint8_t>> states_;  ///< 0 to do, 1 being copied, 2 done
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> spare_mappings_{0};
  unsigned refused_ = 0;  ///< of the server: how often there was no mapping to spare
  std::mutex leaving_;
  std::vector<std::pair<std::byte*, uint64_t>> left_;  ///< mappings that copies came back from
  std::vector<std::thread> copiers_;
  std::thread server_, finisher_;
  std::atomic<bool> finished_{false};
  uint64_t protected_bytes_ = 0;
};

}  // namespace ckpt::flash
