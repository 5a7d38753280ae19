// Devices of host memory, for tests of everything above the seam: streams are threads with seeded delays, capacity is
// finite, any call can be made to fail, and what real devices leave undefined (freeing memory with work on it,
// addresses out of bounds) is written down as a violation. Device addresses lie in a range that no host code can touch.
// `EmulatedTarget` (target.h) is a process that uses them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "lib/device/device.h"

namespace ckpt::device {

enum class Fault {
  kNoRoom,
  kTimeout,
  kDeviceLost,  ///< that device fails from then on; work fails where it is waited for
  kTargetDies,  ///< of a device's call: no effect
};

/// Makes the nth call fail, of whatever kind and of every object that shares this. Thread-safe.
class Faults {
 public:
  void arm(uint64_t nth, Fault fault);
  void disarm();
  /// Whether the call was reached since `arm`.
  bool fired() const;
  /// A call begins.
  std::optional<Fault> step();

 private:
  mutable std::mutex mutex_;
  uint64_t left_ = 0;
  Fault fault_ = Fault::kNoRoom;
  bool armed_ = false, fired_ = false;
};

class EmulatedGpu;

/// Memory of a device. In a memfd, so that it can be exported.
class EmulatedMemory {
 public:
  EmulatedMemory(std::shared_ptr<EmulatedGpu> gpu, UniqueFd fd, Mapping mapping)
      : gpu_(std::move(gpu)), fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  ~EmulatedMemory();
  std::byte* data() const { return mapping_.data(); }
  uint64_t size() const { return mapping_.size(); }
  int fd() const { return fd_.get(); }

 private:
  std::shared_ptr<EmulatedGpu> gpu_;
  UniqueFd fd_;
  Mapping mapping_;
};

/// What both sides share: the hardware.
class EmulatedGpu : public std::enable_shared_from_this<EmulatedGpu> {
 public:
  struct Options {
    uint64_t capacity = 256 << 20;
    uint64_t granularity = kMinChunk;
    uint64_t seed = 1;
    uint32_t max_delay_us = 0;  ///< before a piece of work; about every third has one
    int number = 0;             ///< makes the uuid
    std::shared_ptr<Faults> faults;
  };
  static std::shared_ptr<EmulatedGpu> create(const Options& options);

  const Properties& properties() const { return properties_; }
  const Options& options() const { return options_; }
  Result<std::shared_ptr<EmulatedMemory>> allocate(uint64_t bytes);
  /// Memory that was exported; the same object while anybody has it.
  Result<std::shared_ptr<EmulatedMemory>> import(int fd, uint64_t bytes);

  uint64_t used_bytes() const { return used_; }
  uint64_t peak_bytes() const { return peak_; }
  uint64_t pinned_bytes() const { return pinned_; }
  uint64_t peak_pinned_bytes() const { return peak_pinned_; }
  bool lost() const { return lost_; }
  void lose() { lost_ = true; }
  /// From now on every piece of work takes so much longer.
  void slow_down(uint32_t us) { slower_by_us_ = us; }
  uint32_t slower_by_us() const { return slower_by_us_; }
  /// A call begins: fails if that is injected, or the device is lost. `dies`: what kTargetDies does.
  Result<void> enter(const char* call, const std::function<void()>& dies = {});

  void violation(const std::string& what);
  std::vector<std::string> violations() const;

 private:
  friend class EmulatedMemory;
  friend class EmulatedHostBuffer;
  explicit EmulatedGpu(const Options& options);
  Result<std::shared_ptr<EmulatedMemory>> map(UniqueFd fd, uint64_t bytes);

  Options options_;
  Properties properties_;
  std::atomic<bool> lost_{false};
  std::atomic<uint32_t> slower_by_us_{0};
  std::atomic<uint64_t> used_{0}, peak_{0}, pinned_{0}, peak_pinned_{0};
  mutable std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<EmulatedMemory>> by_inode_;
  std::vector<std::string> violations_;
};

/// Work in order on a thread of its own.
class EmulatedQueue {
 public:
  using Work = std::function<Result<void>()>;
  explicit EmulatedQueue(std::shared_ptr<EmulatedGpu> gpu);
  ~EmulatedQueue();
  void push(Work work);
  /// The first error since the queue was made.
  Result<void> wait(uint64_t timeout_us);
  bool idle();

 private:
  void run();

  std::shared_ptr<EmulatedGpu> gpu_;
  std::mt19937_64 rng_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool busy_ = false, stopping_ = false;
  std::optional<Error> error_;
  std::thread thread_;
};

/// A range of addresses that nothing else has, and no host code can touch.
uint64_t reserve_device_addresses(uint64_t bytes);

/// Where addresses lead, in one process. Thread-safe.
class EmulatedAddressSpace {
 public:
  /// Something mapped, with the work on it.
  struct Mapped {
    std::shared_ptr<EmulatedMemory> memory;  ///< null: host memory
    std::byte* data = nullptr;
    Range range;
    std::atomic<int> work{0};
  };
  using Pin = std::shared_ptr<Mapped>;

  void map(Range range, std::shared_ptr<EmulatedMemory> memory, std::byte* data);
  /// False: there is work on it (or nothing there); it is unmapped all the same.
  bool unmap(Address start);
  /// Null unless the whole range is mapped as one.
  Pin find(Range range) const;
  static std::byte* pointer(const Pin& pin, Address at) { return pin->data + (at - pin->range.start); }

 private:
  mutable std::mutex mutex_;
  std::map<Address, Pin> mapped_;
};

/// A device as ckpt uses it.
std::unique_ptr<Device> make_emulated_device(std::shared_ptr<EmulatedGpu> gpu);

}  // namespace ckpt::device
