#include "tests/support/emulated/target.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "lib/base/checked.h"

namespace ckpt::device {

namespace {

/// Pins all memory that its work may reach: kernels find addresses in memory, too.
class SpaceMemory final : public KernelMemory {
 public:
  explicit SpaceMemory(const EmulatedAddressSpace& space) : space_(space) {}
  ~SpaceMemory() override {
    for (const auto& pin : pins_) --pin->work;
  }
  std::byte* at(Address address, uint64_t bytes) override {
    auto pin = space_.find({address, bytes});
    if (!pin) return nullptr;
    ++pin->work;
    pins_.push_back(pin);
    return EmulatedAddressSpace::pointer(pin, address);
  }

 private:
  const EmulatedAddressSpace& space_;
  std::vector<EmulatedAddressSpace::Pin> pins_;
};

/// The copy from host memory, as a kernel: its arguments are the address and the bytes.
constexpr const char* kWriteKernel = "write";
constexpr uint64_t kCowUnit = kMinChunk;

std::string to_record(const KernelCall& call) {
  std::string out = call.kernel;
  for (uint64_t argument : call.arguments) out += fmt::format(" {:x}", argument);
  return out;
}

KernelCall from_record(const Launch& launch) {
  KernelCall out;
  size_t at = launch.record.find(' ');
  out.kernel = launch.record.substr(0, at);
  while (at != std::string::npos) {
    out.arguments.push_back(std::strtoull(launch.record.c_str() + at + 1, nullptr, 16));
    at = launch.record.find(' ', at + 1);
  }
  return out;
}

}  // namespace

EmulatedTarget::EmulatedTarget(int pid, std::vector<std::shared_ptr<EmulatedGpu>> gpus,
                               std::map<std::string, Kernel> kernels, int streams)
    : pid_(pid), gpus_(std::move(gpus)), kernels_(std::move(kernels)) {
  for (int i = 0; i <= streams; ++i) streams_.push_back(std::make_unique<EmulatedQueue>(gpus_.front()));
}

EmulatedTarget::EmulatedTarget(int pid, std::vector<std::shared_ptr<EmulatedGpu>> gpus,
                               std::map<std::string, Kernel> kernels, const std::vector<Allocation>& released)
    : EmulatedTarget(pid, std::move(gpus), std::move(kernels)) {
  for (Allocation allocation : released) {
    allocation.released = true;
    next_id_ = std::max(next_id_, allocation.id + 1);
    entries_[allocation.id] = {allocation, nullptr};
  }
}

EmulatedTarget::~EmulatedTarget() {
  die();
  streams_.clear();
}

void EmulatedTarget::die() {
  std::lock_guard lock(mutex_);
  alive_ = false;
  changed_.notify_all();
}

Result<void> EmulatedTarget::enter(const char* call) {
  CKPT_TRY(gpus_.front()->enter(call, [this] { die(); }));
  if (!alive_) return fail(Code::kNotFound, fmt::format("{}", pid_), "the process has ended");
  return {};
}

Result<void> EmulatedTarget::require_closed(const char* call) const {
  if (!closed_) return fail(Code::kBug, call, "the API is unlocked");
  return {};
}

EmulatedTarget::Entry* EmulatedTarget::entry_of(Range range) {
  for (auto& [id, entry] : entries_) {
    if (entry.allocation.range().contains(range)) return &entry;
  }
  return nullptr;
}

Result<EmulatedTarget::Entry*> EmulatedTarget::owned(uint64_t id) {
  auto found = entries_.find(id);
  if (found == entries_.end()) return fail(Code::kNotFound, fmt::format("allocation {}", id), "there is none");
  if (found->second.allocation.kind != MemoryKind::kOwned) {
    return fail(Code::kUnsupported, fmt::format("allocation {}", id), "is not the interposer's");
  }
  return &found->second;
}

// ---- the program ----

std::vector<uint64_t> EmulatedTarget::unfilled(const std::vector<Range>& touched) const {
  std::vector<uint64_t> out;
  for (uint64_t id : unfilled_) {
    const Range range = entries_.at(id).allocation.range();
    if (std::any_of(touched.begin(), touched.end(), [&](const Range& r) { return r.overlaps(range); }))
      out.push_back(id);
  }
  return out;
}

Result<void> EmulatedTarget::pass(Lock& lock, const std::vector<Range>& touched) {
  const uint64_t number = next_demand_++;
  for (;;) {
    if (!alive_) return fail(Code::kNotFound, fmt::format("{}", pid_), "the process has ended");
    std::vector<uint64_t> missing = unfilled(touched);
    if (missing.empty()) demands_.erase(number);
    else demands_[number] = missing;
    if (!closed_ && missing.empty()) return {};
    changed_.notify_all();
    changed_.wait(lock);
  }
}

Result<Allocation> EmulatedTarget::allocate(uint64_t bytes, int device, MemoryKind kind) {
  Lock lock(mutex_);
  CKPT_TRY(pass(lock, {}));
  auto& gpu = gpus_[static_cast<size_t>(device)];
  CKPT_TRY_ASSIGN(auto memory, gpu->allocate(bytes));
  Allocation out{next_id_++, {reserve_device_addresses(memory->size())}, memory->size(), device, kind, false};
  space_->map(out.range(), memory, memory->data());
  entries_[out.id] = {out, std::move(memory)};
  return out;
}

Result<void> EmulatedTarget::free(uint64_t id) {
  Lock lock(mutex_);
  CKPT_TRY(pass(lock, {}));
  auto found = entries_.find(id);
  if (found == entries_.end()) return fail(Code::kNotFound, "", "there is no such allocation");
  for (auto& stream : streams_) CKPT_TRY(stream->wait(60'000'000));  // as cuMemFree does
  if (!found->second.allocation.released) (void)space_->unmap(found->second.allocation.address);
  entries_.erase(found);
  unfilled_.erase(id);
  return {};
}

void EmulatedTarget::push(EmulatedQueue& queue, const KernelCall& call) {
  queue.push([this, call, space = space_]() -> Result<void> {
    SpaceMemory memory(*space);
    if (call.kernel == kWriteKernel) {
      const uint64_t size = call.arguments[1];
      if (std::byte* to = memory.at({call.arguments[0]}, size)) std::memcpy(to, call.arguments.data() + 2, size);
    } else {
      kernels_.at(call.kernel)(memory, call.arguments);
    }
    return {};
  });
}

/// One run of an entry's chunks; false: no room.
bool EmulatedTarget::save_run(EmulatedQueue& queue, const Entry& entry, Range run) {
  if (cow_->used + run.size > cow_->budget) return false;
  auto memory = gpu_of(entry).allocate(run.size);
  if (!memory) return false;
  Save save{run, *memory, std::make_shared<std::atomic<bool>>(false)};
  cow_->used += run.size;
  cow_->saves[next_id_++] = save;
  queue.push([save, from = entry.memory, offset = run.start - entry.allocation.address]() -> Result<void> {
    std::memcpy(save.memory->data(), from->data() + offset, save.original.size);
    *save.copied = true;
    return {};
  });
  return true;
}

/// Before a launch: what it may write is copied aside on its own stream; what another stream is copying is waited for
/// there.
void EmulatedTarget::save_aside(Lock&, EmulatedQueue& queue, const std::vector<Range>& writes) {
  if (!cow_) return;
  for (const Range& range : writes) {
    Entry* entry = entry_of(range);
    if (entry == nullptr || entry->memory == nullptr) continue;
    const uint64_t first = align_down(range.start.value, kCowUnit), last = align_up(range.end().value, kCowUnit);
    for (uint64_t at = first; at < last;) {
      if (cow_->wanted.count(at) == 0) {
        at += kCowUnit;
        continue;
      }
      uint64_t end = at;
      while (end < last && cow_->wanted.erase(end) != 0) end += kCowUnit;
      const Range run{{at}, end - at};
      if (!save_run(queue, *entry, run)) cow_->missed.push_back(run);
      at = end;
    }
    for (const auto& [number, save] : cow_->saves) {
      if (!save.original.overlaps(range) || *save.copied) continue;
      queue.push([copied = save.copied, gpu = gpus_.front()]() -> Result<void> {
        while (!*copied && !gpu->lost()) std::this_thread::yield();
        return {};
      });
    }
  }
}

Result<void> EmulatedTarget::submit(Lock& lock, int stream, const KernelCall& call) {
  std::vector<Range> touched = call.reads;
  touched.insert(touched.end(), call.writes.begin(), call.writes.end());
  CKPT_TRY(pass(lock, touched));
  EmulatedQueue& queue = *streams_[static_cast<size_t>(stream)];
  save_aside(lock, queue, call.writes);
  const uint64_t sequence = sequence_++;
  if (recording_) {
    if (recording_->launches.size() < recording_->limit) {
      recording_->launches.push_back({sequence, call.reads, call.writes, call.replayable, to_record(call), "emulated"});
    } else {
      recording_->overflow = true;
    }
  }
  push(queue, call);
  return {};
}

Result<void> EmulatedTarget::launch(int stream, const KernelCall& call) {
  if (kernels_.count(call.kernel) == 0) return fail(Code::kUsage, call.kernel, "there is no such kernel");
  Lock lock(mutex_);
  return submit(lock, stream, call);
}

Result<void> EmulatedTarget::write(int stream, Address to, ByteSpan bytes) {
  KernelCall call{kWriteKernel, {to.value, bytes.size()}, {}, {{to, bytes.size()}}, false};
  call.arguments.resize(2 + align_up<uint64_t>(bytes.size(), 8) / 8);
  std::memcpy(call.arguments.data() + 2, bytes.data(), bytes.size());
  Lock lock(mutex_);
  // Addresses that it brings to the device are followed by later launches.
  for (size_t i = 2; i < call.arguments.size() && !unfilled_.empty(); ++i) {
    if (Entry* entry = entry_of({{call.arguments[i]}, 1})) call.reads.push_back(entry->allocation.range());
  }
  return submit(lock, stream, call);
}

Result<void> EmulatedTarget::synchronize(uint64_t timeout_us) {
  for (auto& stream : streams_) CKPT_TRY(stream->wait(timeout_us));
  return {};
}

// ---- what a test sees ----

std::vector<std::byte> EmulatedTarget::peek(Range range) const {
  auto pin = space_->find(range);
  if (!pin) return {};
  const std::byte* at = EmulatedAddressSpace::pointer(pin, range.start);
  return {at, at + range.size};
}

bool EmulatedTarget::gate_open() const {
  std::lock_guard lock(mutex_);
  return !closed_;
}

uint64_t EmulatedTarget::cow_bytes() const {
  std::lock_guard lock(mutex_);
  return cow_ ? cow_->used : 0;
}

// ---- the agent ----

Result<std::string> EmulatedTarget::device_uuid(int device) {
  CKPT_TRY(enter("device_uuid"));
  if (device < 0 || static_cast<size_t>(device) >= gpus_.size()) {
    return fail(Code::kNotFound, fmt::format("device {}", device), "there is none");
  }
  return gpus_[static_cast<size_t>(device)]->properties().uuid;
}

Result<std::vector<Allocation>> EmulatedTarget::allocations() {
  CKPT_TRY(enter("allocations"));
  Lock lock(mutex_);
  std::vector<Allocation> out;
  for (const auto& [id, entry] : entries_) out.push_back(entry.allocation);
  return out;
}

Result<UniqueFd> EmulatedTarget::export_allocation(uint64_t id) {
  CKPT_TRY(enter("export_allocation"));
  Lock lock(mutex_);
  CKPT_TRY_ASSIGN(Entry * entry, owned(id));
  if (entry->memory == nullptr) return fail(Code::kNotFound, fmt::format("allocation {}", id), "has no memory");
  UniqueFd out(::fcntl(entry->memory->fd(), F_DUPFD_CLOEXEC, 0));
  if (!out) return sys_error("", "cannot export device memory");
  return out;
}

Result<void> EmulatedTarget::lock_api(uint64_t) {
  CKPT_TRY(enter("lock_api"));
  Lock lock(mutex_);  // calls hold it while they are in the API lock
  closed_ = true;
  return {};
}

Result<void> EmulatedTarget::drain(uint64_t timeout_us) {
  CKPT_TRY(enter("drain"));
  {
    Lock lock(mutex_);
    CKPT_TRY(require_closed("drain"));
  }
  return synchronize(timeout_us);
}

Result<void> EmulatedTarget::unlock_api() {
  // No fault is injected here: an API lock that does not open leaves nothing to promise.
  if (!alive_) return fail(Code::kNotFound, fmt::format("{}", pid_), "the process has ended");
  Lock lock(mutex_);
  closed_ = false;
  changed_.notify_all();
  return {};
}

Result<void> EmulatedTarget::begin_cow(uint64_t budget, const std::vector<Range>& wanted) {
  CKPT_TRY(enter("begin_cow"));
  Lock lock(mutex_);
  CKPT_TRY(require_closed("begin_cow"));
  cow_.emplace();
  cow_->budget = budget;
  for (const Range& range : wanted) {
    for (uint64_t at = range.start.value; at < range.end().value; at += kCowUnit) cow_->wanted.insert(at);
  }
  return {};
}

Result<SavedTable> EmulatedTarget::saved(uint64_t timeout_us) {
  CKPT_TRY(enter("saved"));
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(timeout_us);
  Lock lock(mutex_);
  if (!cow_) return fail(Code::kBug, "saved", "copy-on-write is not on");
  SavedTable out;
  out.missed = cow_->missed;
  const auto saves = cow_->saves;
  lock.unlock();
  for (const auto& [number, save] : saves) {
    while (!*save.copied) {
      if (gpus_.front()->lost()) return fail(Code::kIo, "", "the device is lost");
      if (std::chrono::steady_clock::now() > end) return fail(Code::kBusy, "", "copies are not done within the time");
      std::this_thread::yield();
    }
    out.saved.push_back({save.original, number, save.memory->size(), 0});
  }
  return out;
}

Result<UniqueFd> EmulatedTarget::export_saved(uint64_t buffer) {
  CKPT_TRY(enter("export_saved"));
  Lock lock(mutex_);
  if (!cow_ || cow_->saves.count(buffer) == 0) return fail(Code::kNotFound, "", "there is no such buffer");
  UniqueFd out(::fcntl(cow_->saves[buffer].memory->fd(), F_DUPFD_CLOEXEC, 0));
  if (!out) return sys_error("", "cannot export device memory");
  return out;
}

Result<void> EmulatedTarget::end_cow() {
  if (!alive_) return fail(Code::kNotFound, fmt::format("{}", pid_), "the process has ended");
  Lock lock(mutex_);
  cow_.reset();
  return {};
}

Result<void> EmulatedTarget::release(uint64_t id) {
  CKPT_TRY(enter("release"));
  Lock lock(mutex_);
  CKPT_TRY(require_closed("release"));
  CKPT_TRY_ASSIGN(Entry * entry, owned(id));
  if (entry->memory == nullptr) return fail(Code::kBug, "release", "there is no memory");
  if (!space_->unmap(entry->allocation.address)) gpu_of(*entry).violation("memory was released with work on it");
  entry->memory = nullptr;
  entry->allocation.released = true;
  return {};
}

Result<void> EmulatedTarget::attach(uint64_t id, int fd) {
  CKPT_TRY(enter("attach"));
  Lock lock(mutex_);
  CKPT_TRY(require_closed("attach"));
  CKPT_TRY_ASSIGN(Entry * entry, owned(id));
  if (entry->memory != nullptr) return fail(Code::kBug, "attach", "there is memory already");
  const uint64_t size = entry->allocation.size;
  CKPT_TRY_ASSIGN(entry->memory, fd >= 0 ? gpu_of(*entry).import(fd, size) : gpu_of(*entry).allocate(size));
  if (fd < 0) std::memset(entry->memory->data(), 0xa5, size);
  entry->allocation.released = false;
  space_->map(entry->allocation.range(), entry->memory, entry->memory->data());
  return {};
}

Result<void> EmulatedTarget::begin_fill(const std::vector<uint64_t>& ids) {
  CKPT_TRY(enter("begin_fill"));
  Lock lock(mutex_);
  CKPT_TRY(require_closed("begin_fill"));
  unfilled_.insert(ids.begin(), ids.end());
  changed_.notify_all();
  return {};
}

Result<std::optional<std::vector<uint64_t>>> EmulatedTarget::next_demand(uint64_t timeout_us) {
  CKPT_TRY(enter("next_demand"));
  Lock lock(mutex_);
  std::vector<uint64_t> out;
  changed_.wait_for(lock, std::chrono::microseconds(timeout_us), [&] {
    for (const auto& [number, ids] : demands_) {
      for (uint64_t id : ids) {
        if (unfilled_.count(id) != 0 && std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
      }
    }
    return !out.empty() || !alive_;
  });
  if (!alive_) return fail(Code::kNotFound, fmt::format("{}", pid_), "the process has ended");
  if (out.empty()) return std::optional<std::vector<uint64_t>>();
  return std::optional(std::move(out));
}

Result<void> EmulatedTarget::filled(uint64_t id) {
  CKPT_TRY(enter("filled"));
  Lock lock(mutex_);
  unfilled_.erase(id);
  changed_.notify_all();
  return {};
}

Result<void> EmulatedTarget::begin_recording(uint64_t limit) {
  CKPT_TRY(enter("begin_recording"));
  Lock lock(mutex_);
  CKPT_TRY(require_closed("begin_recording"));
  recording_.emplace();
  recording_->limit = limit;
  return {};
}

Result<std::vector<Launch>> EmulatedTarget::recorded() {
  CKPT_TRY(enter("recorded"));
  Lock lock(mutex_);
  CKPT_TRY(require_closed("recorded"));
  if (!recording_) return fail(Code::kBug, "recorded", "nothing is recorded");
  if (recording_->overflow) return fail(Code::kNoRoom, "", "there were more launches than are recorded");
  return recording_->launches;
}

Result<void> EmulatedTarget::end_recording() {
  if (!alive_) return fail(Code::kNotFound, fmt::format("{}", pid_), "the process has ended");
  Lock lock(mutex_);
  recording_.reset();
  return {};
}

Result<void> EmulatedTarget::replay(const Launch& launch) {
  CKPT_TRY(enter("replay"));
  Lock lock(mutex_);
  CKPT_TRY(require_closed("replay"));
  const KernelCall call = from_record(launch);
  if (kernels_.count(call.kernel) == 0) return fail(Code::kUnsupported, call.kernel, "cannot be run again");
  push(*streams_.back(), call);
  ++replayed_;
  return {};
}

}  // namespace ckpt::device
