#include "tests/support/emulated/device.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>

#include "lib/base/checked.h"

namespace ckpt::device {

namespace {

void raise_to(std::atomic<uint64_t>& peak, uint64_t value) {
  uint64_t seen = peak;
  while (seen < value && !peak.compare_exchange_weak(seen, value)) {}
}

/// Takes `bytes` of what is free, or nothing.
bool take(std::atomic<uint64_t>& used, std::atomic<uint64_t>& peak, uint64_t bytes, uint64_t capacity) {
  uint64_t before = used;
  do {
    if (bytes > capacity || before > capacity - bytes) return false;
  } while (!used.compare_exchange_weak(before, before + bytes));
  raise_to(peak, before + bytes);
  return true;
}

}  // namespace

void Faults::arm(uint64_t nth, Fault fault) {
  std::lock_guard lock(mutex_);
  left_ = nth, fault_ = fault, armed_ = true, fired_ = false;
}

void Faults::disarm() {
  std::lock_guard lock(mutex_);
  armed_ = false;
}

bool Faults::fired() const {
  std::lock_guard lock(mutex_);
  return fired_;
}

std::optional<Fault> Faults::step() {
  std::lock_guard lock(mutex_);
  if (!armed_ || left_-- != 0) return std::nullopt;
  armed_ = false, fired_ = true;
  return fault_;
}

EmulatedMemory::~EmulatedMemory() { gpu_->used_ -= size(); }

EmulatedGpu::EmulatedGpu(const Options& options) : options_(options) {
  properties_.uuid = fmt::format("GPU-00000000-0000-0000-0000-{:012x}", options.number);
  properties_.name = "emulated";
  properties_.driver = "none";
  properties_.total_bytes = options.capacity;
  properties_.granularity = options.granularity;
}

std::shared_ptr<EmulatedGpu> EmulatedGpu::create(const Options& options) {
  return std::shared_ptr<EmulatedGpu>(new EmulatedGpu(options));
}

Result<std::shared_ptr<EmulatedMemory>> EmulatedGpu::map(UniqueFd fd, uint64_t bytes) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return sys_error("", "cannot look at device memory");
  if (!take(used_, peak_, bytes, options_.capacity))
    return fail(Code::kNoRoom, properties_.uuid, "the device is out of memory");
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) {
    used_ -= bytes;
    return sys_error("", "cannot map device memory");
  }
  auto out = std::make_shared<EmulatedMemory>(shared_from_this(), std::move(fd), Mapping(at, bytes));
  std::lock_guard lock(mutex_);
  by_inode_[info.st_ino] = out;
  return out;
}

Result<std::shared_ptr<EmulatedMemory>> EmulatedGpu::allocate(uint64_t bytes) {
  UniqueFd fd(::memfd_create("ckpt-emulated-device", MFD_CLOEXEC));
  bytes = align_up(bytes, options_.granularity);
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return sys_error("", "cannot make device memory");
  return map(std::move(fd), bytes);
}

Result<std::shared_ptr<EmulatedMemory>> EmulatedGpu::import(int fd, uint64_t bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes) {
    return fail(Code::kUnsupported, "", "the descriptor is not device memory of that size");
  }
  {
    std::lock_guard lock(mutex_);
    auto found = by_inode_.find(info.st_ino);
    if (auto memory = found == by_inode_.end() ? nullptr : found->second.lock()) return memory;
  }
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return sys_error("", "cannot import device memory");
  return map(std::move(own), bytes);
}

Result<void> EmulatedGpu::enter(const char* call, const std::function<void()>& dies) {
  std::optional<Fault> fault;
  if (options_.faults) fault = options_.faults->step();
  if (fault == Fault::kNoRoom) return fail(Code::kNoRoom, call, "out of memory (injected)");
  if (fault == Fault::kTimeout) return fail(Code::kBusy, call, "not within the time (injected)");
  if (fault == Fault::kDeviceLost) lose();
  if (fault == Fault::kTargetDies && dies) dies();
  if (lost_) return fail(Code::kIo, call, "the device is lost");
  return {};
}

void EmulatedGpu::violation(const std::string& what) {
  std::lock_guard lock(mutex_);
  violations_.push_back(what);
}

std::vector<std::string> EmulatedGpu::violations() const {
  std::lock_guard lock(mutex_);
  return violations_;
}

EmulatedQueue::EmulatedQueue(std::shared_ptr<EmulatedGpu> gpu)
    : gpu_(std::move(gpu)), rng_(gpu_->options().seed), thread_([this] { run(); }) {}

EmulatedQueue::~EmulatedQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EmulatedQueue::push(Work work) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

Result<void> EmulatedQueue::wait(uint64_t timeout_us) {
  std::unique_lock lock(mutex_);
  const bool done =
      changed_.wait_for(lock, std::chrono::microseconds(timeout_us), [&] { return queue_.empty() && !busy_; });
  if (!done) return fail(Code::kBusy, "", "the device's work is not done within the time");
  if (error_) return *error_;
  return {};
}

bool EmulatedQueue::idle() {
  std::lock_guard lock(mutex_);
  return queue_.empty() && !busy_;
}

void EmulatedQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    {
      Work work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      const uint32_t most = gpu_->options().max_delay_us;
      if (most != 0 && rng_() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng_() % most));
      if (const uint32_t us = gpu_->slower_by_us(); us != 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
      Result<void> result = gpu_->lost() ? fail(Code::kIo, "", "the device is lost") : Result<void>();
      Result<void> own = work();  // runs all the same: it may have to tell somebody that it is over
      if (result) result = std::move(own);
      work = nullptr;
      lock.lock();
      if (!result && !error_) error_ = std::move(result).error();
      busy_ = false;
    }
    changed_.notify_all();
  }
}

uint64_t reserve_device_addresses(uint64_t bytes) {
  static constexpr uint64_t kArena = uint64_t{1} << 38;
  static const uint64_t kBase = [] {
    void* at = ::mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CKPT_ASSERT(at != MAP_FAILED);
    return align_up(reinterpret_cast<uint64_t>(at), kMaxChunk);
  }();
  static std::atomic<uint64_t> next{0};
  const uint64_t offset =
      next.fetch_add(align_up(bytes, kMaxChunk) + kMaxChunk);  // a gap behind each: overruns lead nowhere
  CKPT_ASSERT(offset + bytes < kArena - kMaxChunk);
  return kBase + offset;
}

void EmulatedAddressSpace::map(Range range, std::shared_ptr<EmulatedMemory> memory, std::byte* data) {
  auto mapped = std::make_shared<Mapped>();
  mapped->memory = std::move(memory), mapped->data = data, mapped->range = range;
  std::lock_guard lock(mutex_);
  mapped_[range.start] = std::move(mapped);
}

bool EmulatedAddressSpace::unmap(Address start) {
  std::lock_guard lock(mutex_);
  auto found = mapped_.find(start);
  if (found == mapped_.end()) return false;
  const bool idle = found->second->work == 0;
  mapped_.erase(found);
  return idle;
}

EmulatedAddressSpace::Pin EmulatedAddressSpace::find(Range range) const {
  std::lock_guard lock(mutex_);
  auto after = mapped_.upper_bound(range.start);
  if (after == mapped_.begin()) return nullptr;
  const Pin& pin = std::prev(after)->second;
  return pin->range.contains(range) ? pin : nullptr;
}

}  // namespace ckpt::device
