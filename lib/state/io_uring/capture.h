// io_uring instances among the descriptors of a tree, and their views among its mappings.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/proc/call_batch.h"
#include "lib/proc/io_uring.h"
#include "lib/proc/io_uring_kernel.h"
#include "lib/state/descriptors/context.h"
#include "lib/state/io_uring/memory.h"

namespace ckpt::capture {

/// Name of a mapping of a ring's memory.
inline constexpr const char* kUringMapping = "anon_inode:[io_uring]";

/// Requests that the kernel has taken and not answered, as far as its counters tell: each is answered once, but for
/// those that were dropped as wrong. Multishot and zero-copy requests are answered more often, others by wish not at
/// all: where such ones were used the counters differ for good, and the ring is refused.
struct UringFlight {
  uint32_t requests = 0;     ///< in flight
  bool is_countable = true;  ///< false: there are more completions than requests
};
UringFlight in_flight(const proc::UringInfo& info, uint32_t dropped);

class UringCollector {
 public:
  explicit UringCollector(DescriptorContext& context) : context_(context) {}

  /// Fills kind and state of `d`; false: a blocker was noted instead. Of a tree that stands still the content of its
  /// memory is taken, and what is in flight is a blocker that passes.
  Result<bool> take(const Place& place, store::Descriptor& d);
  /// Once all descriptors are described: whose memory the mappings are, which files are registered.
  Result<void> settle(const std::deque<Place>& places);

 private:
  struct Content {
    std::vector<std::byte> bytes;
    uint32_t dropped = 0, tail = 0;  ///< of the submission queue
  };
  bool take_inside(const Place& place, int ring, const proc::UringInfo& info, store::IoUring& out);
  bool take_poller(const Place& place, const proc::UringKernelInfo& inside, store::IoUring& out);
  Result<Content> take_content(int fd, store::IoUring& ring);
  void check_flight(const Place& place, const proc::UringInfo& info, const Content& content);
  Result<uint64_t> look_for_eventfd(int ring, store::IoUring& out);
  void find_eventfd(size_t index, const std::deque<Place>& places);
  void find_pollers(const std::deque<Place>& places);
  void find_views();
  void check_restrictions(size_t index);
  void find_files(size_t index, const std::deque<Place>& places);
  bool is_blocked(size_t process) const;
  bool is_new(const Place& place) const;
  void block(size_t index, std::string what);

  struct Found {
    Place place;
    uint64_t inode;
    proc::UringInfo info;
    uint64_t eventfd = 0;  ///< what it tells its completions to, in the kernel's memory; 0: nothing
  };
  DescriptorContext& context_;
  std::optional<state::UringLayout> layout_;
  bool knows_shape_ = false;  ///< of the ring that is being taken
  std::vector<Found> found_;  ///< parallel to image.io_urings
};

/// A descriptor of a process that is a ring.
struct RingPlace {
  int fd = 0;
  int ring = 0;  ///< index into TreeImage::io_urings
  bool polled = false;  ///< a thread of the kernel polls it
};
std::vector<RingPlace> rings_of(const store::TreeImage& tree, int process);

/// What only a thread of a process with rings tells. It adds its calls when it is made.
class UringQuestions {
 public:
  /// `rings`: descriptors of the process.
  UringQuestions(proc::CallList& calls, const std::vector<RingPlace>& rings);
  /// kUnsupported: something that no restore could make again. Fills IoUring::numbers and workers.
  Result<void> take(const proc::CallList& calls, int tid, store::TreeImage& tree) const;

 private:
  Result<void> take_workers(const proc::CallList& calls, int tid, store::TreeImage& tree) const;

  const std::vector<RingPlace>& rings_;
  std::vector<size_t> numbers_, enabled_, eventfds_;
  std::vector<std::optional<size_t>> workers_;  ///< none: not asked
};

/// Why a ring is refused by what the kernel answers to who asks for its eventfd; empty: no reason, or nobody but the
/// program's own thread may ask.
std::string refused_by_registration(int64_t answer, const store::IoUring& ring);

}  // namespace ckpt::capture
