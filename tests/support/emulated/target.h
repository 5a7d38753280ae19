// A process that uses emulated devices: what an interposed program does (allocate, launch, copy), and what the agent
// inside it does for ckpt (`Target`). Its calls pass an API lock; its kernels are functions that name, or hide, what
// they write.
#pragma once

#include <memory>
#include <set>

#include "lib/device/target.h"
#include "tests/support/emulated/device.h"

namespace ckpt::device {

/// What a kernel sees of device memory while it runs.
class KernelMemory {
 public:
  virtual ~KernelMemory() = default;
  /// Null where nothing is mapped.
  virtual std::byte* at(Address address, uint64_t bytes) = 0;
  uint64_t* words(Address address, uint64_t count) { return reinterpret_cast<uint64_t*>(at(address, count * 8)); }
};

/// A kernel with its arguments. Kernels are found by name again when they are replayed.
struct KernelCall {
  std::string kernel;
  std::vector<uint64_t> arguments;
  std::vector<Range> reads, writes;  ///< as far as the arguments tell: kernels may lie
  bool replayable = true;
};
using Kernel = std::function<void(KernelMemory&, const std::vector<uint64_t>& arguments)>;

class EmulatedTarget : public Target {
 public:
  EmulatedTarget(int pid, std::vector<std::shared_ptr<EmulatedGpu>> gpus, std::map<std::string, Kernel> kernels,
                 int streams = 2);
  /// The same process made again: the same ids at the same addresses, with no memory behind them.
  EmulatedTarget(int pid, std::vector<std::shared_ptr<EmulatedGpu>> gpus, std::map<std::string, Kernel> kernels,
                 const std::vector<Allocation>& released);
  ~EmulatedTarget() override;

  // What the program does. Waits at the API lock.
  Result<Allocation> allocate(uint64_t bytes, int device = 0, MemoryKind kind = MemoryKind::kOwned);
  Result<void> free(uint64_t id);
  Result<void> launch(int stream, const KernelCall& call);
  /// A copy from host memory, in order with the stream; the bytes are taken over.
  Result<void> write(int stream, Address to, ByteSpan bytes);
  Result<void> synchronize(uint64_t timeout_us = 60'000'000);

  // What a test sees.
  /// The bytes now, past the API lock.
  std::vector<std::byte> peek(Range range) const;
  bool gate_open() const;
  bool alive() const { return alive_; }
  void die();
  /// Launches that ran again.
  uint64_t replayed() const { return replayed_; }
  /// Bytes that copy-on-write holds.
  uint64_t cow_bytes() const;

  // Target.
  int pid() const override { return pid_; }
  Result<std::string> device_uuid(int device) override;
  Result<std::vector<Allocation>> allocations() override;
  Result<std::vector<int>> contexts() override { return std::vector<int>(gpus_.empty() ? 0 : 1); }
  Result<std::vector<std::string>> hazards() override { return std::vector<std::string>(); }
  Result<UniqueFd> export_allocation(uint64_t id) override;
  Result<void> lock_api(uint64_t timeout_us) override;
  Result<void> drain(uint64_t timeout_us) override;
  Result<void> unlock_api() override;
  Result<void> begin_cow(uint64_t budget, const std::vector<Range>& wanted) override;
  Result<SavedTable> saved(uint64_t timeout_us) override;
  Result<UniqueFd> export_saved(uint64_t buffer) override;
  Result<void> end_cow() override;
  Result<void> release(uint64_t id) override;
  Result<void> attach(uint64_t id, int fd) override;
  Result<void> renew(uint64_t, Renew) override { return {}; }
  Result<void> hold(uint64_t) override { return {}; }
  void renew_lease() override {}
  Result<void> wake() override { return {}; }
  Result<void> begin_fill(const std::vector<uint64_t>& ids) override;
  Result<std::optional<std::vector<uint64_t>>> next_demand(uint64_t timeout_us) override;
  Result<void> filled(uint64_t id) override;
  Result<void> begin_recording(uint64_t limit) override;
  Result<std::vector<Launch>> recorded() override;
  Result<void> end_recording() override;
  Result<void> replay(const Launch& launch) override;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Entry {
    Allocation allocation;
    std::shared_ptr<EmulatedMemory> memory;  ///< null: released
  };
  /// Bytes set aside. `copied` is set by the stream that copies.
  struct Save {
    Range original;
    std::shared_ptr<EmulatedMemory> memory;
    std::shared_ptr<std::atomic<bool>> copied;
  };
  struct Cow {
    uint64_t budget = 0, used = 0;
    std::map<uint64_t, Save> saves;     ///< by a number that names the buffer
    std::set<uint64_t> wanted;          ///< addresses of what is not saved yet, in units
    std::vector<Range> missed;
  };
  struct Recording {
    uint64_t limit = 0;
    bool overflow = false;
    std::vector<Launch> launches;
  };

  Result<void> enter(const char* call);
  Result<void> require_closed(const char* call) const;
  /// Waits for the API lock, and for what `touched` says must be filled first.
  Result<void> pass(Lock& lock, const std::vector<Range>& touched);
  std::vector<uint64_t> unfilled(const std::vector<Range>& touched) const;
  Result<void> submit(Lock& lock, int stream, const KernelCall& call);
  void save_aside(Lock& lock, EmulatedQueue& queue, const std::vector<Range>& writes);
  bool save_run(EmulatedQueue& queue, const Entry& entry, Range run);
  void push(EmulatedQueue& queue, const KernelCall& call);
  Entry* entry_of(Range range);
  Result<Entry*> owned(uint64_t id);
  EmulatedGpu& gpu_of(const Entry& entry) { return *gpus_[static_cast<size_t>(entry.allocation.device)]; }

  const int pid_;
  std::vector<std::shared_ptr<EmulatedGpu>> gpus_;
  const std::map<std::string, Kernel> kernels_;
  std::atomic<bool> alive_{true};
  std::atomic<uint64_t> replayed_{0};
  std::shared_ptr<EmulatedAddressSpace> space_ = std::make_shared<EmulatedAddressSpace>();
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  uint64_t next_id_ = 1, sequence_ = 0;
  std::map<uint64_t, Entry> entries_;
  std::optional<Cow> cow_;
  std::optional<Recording> recording_;
  std::set<uint64_t> unfilled_;
  std::map<uint64_t, std::vector<uint64_t>> demands_;  ///< by a number for each call that waits
  uint64_t next_demand_ = 0;
  std::vector<std::unique_ptr<EmulatedQueue>> streams_;  ///< the last: replays
};

}  // namespace ckpt::device
