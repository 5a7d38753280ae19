// The side of ckpt: buffers, pinned memory, streams.
#include <fcntl.h>
#include <fmt/format.h>

#include <chrono>
#include <cstring>

#include "lib/base/checked.h"
#include "tests/support/emulated/device.h"

namespace ckpt::device {

using Space = std::shared_ptr<EmulatedAddressSpace>;
using Gpu = std::shared_ptr<EmulatedGpu>;

class EmulatedHostBuffer final : public HostBuffer {
 public:
  EmulatedHostBuffer(Gpu gpu, Space space, Mapping memory)
      : gpu_(std::move(gpu)), space_(std::move(space)), memory_(std::move(memory)) {
    space_->map(device_range(), nullptr, memory_.data());
    const uint64_t now = gpu_->pinned_ += memory_.size();
    if (now > gpu_->peak_pinned_) gpu_->peak_pinned_ = now;
  }
  ~EmulatedHostBuffer() override {
    if (!space_->unmap(device_range().start)) gpu_->violation("pinned memory was freed with work on it");
    gpu_->pinned_ -= memory_.size();
  }
  MutableByteSpan bytes() override { return {memory_.data(), memory_.size()}; }
  Range device_range() const override { return {{reinterpret_cast<uint64_t>(memory_.data())}, memory_.size()}; }

 private:
  Gpu gpu_;
  Space space_;
  Mapping memory_;
};

namespace {

class EmulatedBuffer final : public Buffer {
 public:
  EmulatedBuffer(Gpu gpu, Space space, std::shared_ptr<EmulatedMemory> memory)
      : gpu_(std::move(gpu)), space_(std::move(space)), memory_(std::move(memory)),
        range_{{reserve_device_addresses(memory_->size())}, memory_->size()} {
    space_->map(range_, memory_, memory_->data());
  }
  ~EmulatedBuffer() override {
    if (!space_->unmap(range_.start)) gpu_->violation("device memory was freed with work on it");
  }
  Range range() const override { return range_; }
  Result<UniqueFd> export_fd() override {
    CKPT_TRY(gpu_->enter("export"));
    UniqueFd out(::fcntl(memory_->fd(), F_DUPFD_CLOEXEC, 0));
    if (!out) return sys_error("", "cannot export device memory");
    return out;
  }

 private:
  Gpu gpu_;
  Space space_;
  std::shared_ptr<EmulatedMemory> memory_;
  Range range_;
};

/// A flag that a queue sets.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::optional<Error> error;
};

class EmulatedEvent final : public Event {
 public:
  explicit EmulatedEvent(Gpu gpu) : gpu_(std::move(gpu)) {}
  bool done() override {
    std::lock_guard lock(point->mutex);
    return point->done;
  }
  Result<void> wait(uint64_t timeout_us) override {
    // The work itself is waited for whatever is injected: nobody may free memory under it.
    Result<void> injected = gpu_->enter("wait");
    std::unique_lock lock(point->mutex);
    if (!point->changed.wait_for(lock, std::chrono::microseconds(timeout_us), [&] { return point->done; })) {
      return fail(Code::kBusy, "", "the device's work is not done within the time");
    }
    if (point->error) return *point->error;
    return injected;
  }
  std::shared_ptr<Point> point = std::make_shared<Point>();

 private:
  Gpu gpu_;
};

/// A stream: each piece of work holds what it touches.
class EmulatedStream final : public Stream {
 public:
  EmulatedStream(Gpu gpu, Space space) : gpu_(std::move(gpu)), space_(std::move(space)), queue_(gpu_) {}

  Result<void> copy_to_host(MutableByteSpan to, Range from) override {
    CKPT_TRY(gpu_->enter("copy_to_host"));
    CKPT_ASSERT(to.size() == from.size);
    return submit({from, host(to.data(), to.size())}, true,
                  [=](const Pins& p) { std::memcpy(to.data(), p.at(0, from.start), from.size); });
  }
  Result<void> copy_to_device(Range to, ByteSpan from) override {
    CKPT_TRY(gpu_->enter("copy_to_device"));
    CKPT_ASSERT(from.size() == to.size);
    const Range source = host(from.data(), from.size());
    return submit({to, source}, true, [=](const Pins& p) { std::memcpy(p.at(0, to.start), from.data(), from.size()); });
  }
  Result<void> copy(Address to, Range from) override {
    CKPT_TRY(gpu_->enter("copy"));
    return submit({from, {to, from.size}}, false,
                  [=](const Pins& p) { std::memmove(p.at(1, to), p.at(0, from.start), from.size); });
  }
  Result<void> hash(Range range, uint64_t chunk, std::span<ChunkHash> out) override {
    CKPT_TRY(gpu_->enter("hash"));
    CKPT_ASSERT(range.size % chunk == 0 && out.size() == range.size / chunk);
    return submit({range, host(out.data(), out.size_bytes())}, true, [=](const Pins& p) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = hash_chunk(p.at(0, range.start + i * chunk), chunk);
    });
  }
  Result<void> copy_and_hash(std::span<const Address> from, uint64_t chunk, Address to,
                             std::span<ChunkHash> out) override {
    CKPT_TRY(gpu_->enter("copy_and_hash"));
    CKPT_ASSERT(out.size() == from.size());
    std::vector<Range> ranges = {{to, from.size() * chunk}, host(out.data(), out.size_bytes())};
    for (Address at : from) ranges.push_back({at, chunk});
    return submit(ranges, true, [=, sources = std::vector<Address>(from.begin(), from.end())](const Pins& p) {
      for (size_t i = 0; i < sources.size(); ++i)
        out[i] = copy_and_hash_chunk(p.at(0, to + i * chunk), p.at(i + 2, sources[i]), chunk);
    });
  }
  Result<std::unique_ptr<Event>> record() override {
    CKPT_TRY(gpu_->enter("record"));
    auto out = std::make_unique<EmulatedEvent>(gpu_);
    queue_.push([point = out->point, failed = failed_, gpu = gpu_]() -> Result<void> {
      {
        std::lock_guard lock(point->mutex);
        point->done = true;
        if (gpu->lost()) point->error = Error(Code::kIo, "", "the device is lost");
        else if (*failed) point->error = **failed;
      }
      point->changed.notify_all();
      return {};
    });
    return std::unique_ptr<Event>(std::move(out));
  }
  Result<void> wait(Event& event) override {
    CKPT_TRY(gpu_->enter("stream wait"));
    queue_.push([point = static_cast<EmulatedEvent&>(event).point]() -> Result<void> {
      std::unique_lock lock(point->mutex);
      point->changed.wait(lock, [&] { return point->done; });
      return {};
    });
    return {};
  }
  Result<void> synchronize(uint64_t timeout_us) override {
    Result<void> injected = gpu_->enter("synchronize");
    CKPT_TRY(queue_.wait(timeout_us));
    return injected;
  }

 private:
  struct Pins {
    std::vector<EmulatedAddressSpace::Pin> list;
    Pins() = default;
    Pins(const Pins&) = delete;
    ~Pins() {
      for (const auto& pin : list) --pin->work;
    }
    std::byte* at(size_t i, Address address) const { return EmulatedAddressSpace::pointer(list[i], address); }
  };
  static Range host(const void* data, uint64_t size) { return {{reinterpret_cast<uint64_t>(data)}, size}; }

  /// `host_second`: the second range is host memory, which need not be a HostBuffer's.
  template <class Do>
  Result<void> submit(const std::vector<Range>& ranges, bool host_second, Do work) {
    auto pins = std::make_shared<Pins>();
    for (const Range& range : ranges) {
      EmulatedAddressSpace::Pin pin = space_->find(range);
      const bool may_be_host = host_second && pins->list.size() == 1;
      if (!pin && !may_be_host) {
        gpu_->violation(fmt::format("work on {:#x}, {} bytes, which is not mapped", range.start.value, range.size));
        return fail(Code::kBug, "", "no such device memory");
      }
      if (!pin) pin = std::make_shared<EmulatedAddressSpace::Mapped>();
      ++pin->work;
      pins->list.push_back(std::move(pin));
    }
    queue_.push([pins, work, gpu = gpu_, failed = failed_]() mutable -> Result<void> {
      if (!gpu->lost()) work(*pins);
      else if (!*failed) *failed = Error(Code::kIo, "", "the device is lost");
      pins.reset();
      return {};
    });
    return {};
  }

  Gpu gpu_;
  Space space_;
  std::shared_ptr<std::optional<Error>> failed_ =
      std::make_shared<std::optional<Error>>();  ///< the queue's thread's own
  EmulatedQueue queue_;
};

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(Gpu gpu) : gpu_(std::move(gpu)) {}

  const Properties& properties() const override { return gpu_->properties(); }
  Result<MemoryInfo> memory_info() override {
    CKPT_TRY(gpu_->enter("memory_info"));
    return MemoryInfo{gpu_->options().capacity - gpu_->used_bytes(), gpu_->options().capacity};
  }
  Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes) override {
    CKPT_TRY(gpu_->enter("allocate"));
    CKPT_TRY_ASSIGN(auto memory, gpu_->allocate(bytes));
    return std::unique_ptr<Buffer>(std::make_unique<EmulatedBuffer>(gpu_, space_, std::move(memory)));
  }
  Result<std::unique_ptr<Buffer>> import(int fd, uint64_t bytes) override {
    CKPT_TRY(gpu_->enter("import"));
    CKPT_TRY_ASSIGN(auto memory, gpu_->import(fd, bytes));
    return std::unique_ptr<Buffer>(std::make_unique<EmulatedBuffer>(gpu_, space_, std::move(memory)));
  }
  Result<std::unique_ptr<HostBuffer>> allocate_pinned(uint64_t bytes) override {
    CKPT_TRY(gpu_->enter("allocate_pinned"));
    bytes = align_up<uint64_t>(bytes, 4096);
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return sys_error("", "cannot get pinned memory");
    return std::unique_ptr<HostBuffer>(std::make_unique<EmulatedHostBuffer>(gpu_, space_, Mapping(at, bytes)));
  }
  Result<std::unique_ptr<Stream>> create_stream() override {
    CKPT_TRY(gpu_->enter("create_stream"));
    return std::unique_ptr<Stream>(std::make_unique<EmulatedStream>(gpu_, space_));
  }

 private:
  Gpu gpu_;
  Space space_ = std::make_shared<EmulatedAddressSpace>();
};

}  // namespace

std::unique_ptr<Device> make_emulated_device(std::shared_ptr<EmulatedGpu> gpu) {
  return std::make_unique<EmulatedDevice>(std::move(gpu));
}

}  // namespace ckpt::device
