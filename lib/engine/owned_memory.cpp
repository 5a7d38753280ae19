#include "lib/engine/owned_memory.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/text.h"
#include "lib/engine/renewal.h"
#include "lib/memory/device/manifest.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

constexpr uint64_t kConnectUs = 10'000'000;  ///< for an agent that is about to listen
constexpr uint64_t kLeaseUs =
    2'000'000;  ///< renewed until the freeze; should ckpt be killed, the agents listen again that much later

const store::DeviceMemory* find_memory(const store::TreeImage& tree, int pid) {
  for (const store::DeviceMemory& memory : tree.devices) {
    if (tree.processes[static_cast<size_t>(memory.process)].pid == pid) return &memory;
  }
  return nullptr;
}

/// Opens the devices by UUID, each once.
Result<device::Device*> open_once(std::vector<std::unique_ptr<device::Device>>& devices, const std::string& uuid,
                                  const GpuOptions& options) {
  for (const auto& device : devices) {
    if (device->properties().uuid == uuid) return device.get();
  }
  CKPT_TRY_ASSIGN(std::unique_ptr<device::Device> opened, options.open_device(uuid));
  devices.push_back(std::move(opened));
  return devices.back().get();
}

/// Calls an agent until it listens: it will soon, when its lease is over, or it has found itself in a new life.
template <class Call>
auto call_until_heard(int pid, Call call) {
  const Stopwatch watch;
  for (;;) {
    auto heard = call();
    if (heard || heard.error().code != Code::kNotFound || watch.elapsed_us() > kConnectUs || proc::has_ended(pid))
      return heard;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<std::unique_ptr<device::Target>> connect_again(int pid, const GpuOptions& options) {
  return call_until_heard(pid, [&] { return options.connect(pid, kConnectUs); });
}

/// Whether ckpt's kernels run there.
Result<void> try_hash(device::Device& device) {
  CKPT_TRY_ASSIGN(auto memory, device.allocate(capture::kDeviceChunk));
  CKPT_TRY_ASSIGN(auto hashes, device.allocate_pinned(sizeof(device::ChunkHash)));
  CKPT_TRY_ASSIGN(auto stream, device.create_stream());
  std::span<device::ChunkHash> out(reinterpret_cast<device::ChunkHash*>(hashes->bytes().data()), 1);
  CKPT_TRY(stream->hash({memory->range().start, capture::kDeviceChunk}, capture::kDeviceChunk, out));
  return stream->synchronize(kConnectUs);
}

}  // namespace

std::vector<int> OwnedMemory::pids() const {
  std::vector<int> out;
  for (const auto& target : targets_) out.push_back(target->pid());
  return out;
}

std::vector<device::Target*> OwnedMemory::targets() const {
  std::vector<device::Target*> out;
  for (const auto& target : targets_) out.push_back(target.get());
  return out;
}

std::vector<device::Device*> OwnedMemory::devices() const {
  std::vector<device::Device*> out;
  for (const auto& device : devices_) out.push_back(device.get());
  return out;
}

Result<void> OwnedMemory::connect(const std::vector<int>& pids) {
  if (!targets_.empty() || !options_.connect || !options_.open_device) return {};
  for (int pid : pids) {
    auto target = options_.connect(pid, 0);
    if (!target && target.error().code == Code::kNotFound) continue;
    if (!target) return std::move(target).error();
    CKPT_TRY_ASSIGN(const auto allocations, (*target)->allocations());
    const bool owns = std::any_of(allocations.begin(), allocations.end(),
                                  [](const auto& a) { return a.kind == device::MemoryKind::kOwned; });
    if (!owns) continue;
    targets_.push_back(std::move(*target));
  }
  auto opened = open_devices();
  if (opened) return renew_what_is_not_shared();
  targets_.clear();
  devices_.clear();
  bytes_of_.clear();
  bytes_ = 0;
  if (opened.error().code != Code::kUnsupported) return opened;
  progress_.note(opened.error().text() + ": device memory is not pre-copied, the driver takes all of it");
  return {};
}

Result<void> OwnedMemory::renew_what_is_not_shared() {
  for (const auto& target : targets_) {
    CKPT_TRY_ASSIGN(const uint64_t renewed, make_exportable(*target, options_.lock_timeout_us));
    if (renewed != 0)
      progress_.note(fmt::format("{}: {} of device memory is made again, the driver would not share it any more",
                                 proc::describe_pid(target->pid()), human_bytes(renewed)));
  }
  return {};
}

Result<void> OwnedMemory::open_devices() {
  for (const auto& target : targets_) {
    CKPT_TRY_ASSIGN(const auto allocations, target->allocations());
    for (const device::Allocation& allocation : allocations) {
      if (allocation.kind != device::MemoryKind::kOwned) continue;
      bytes_ += allocation.size;
      bytes_of_[target->pid()] += allocation.size;
      CKPT_TRY_ASSIGN(const std::string uuid, target->device_uuid(allocation.device));
      CKPT_TRY_ASSIGN(device::Device * device, open_once(devices_, uuid, options_));
      (void)device;
    }
  }
  for (const auto& device : devices_) CKPT_TRY(try_hash(*device));
  return {};
}

uint64_t OwnedMemory::bytes_of(int pid) const {
  const auto at = bytes_of_.find(pid);
  return at == bytes_of_.end() ? 0 : at->second;
}

void OwnedMemory::add_spaces(store::TreeImage& tree) const {
  tree.devices.clear();
  for (const auto& target : targets_) {
    for (size_t i = 0; i < tree.processes.size(); ++i) {
      if (tree.processes[i].pid == target->pid()) tree.devices.emplace_back().process = static_cast<int>(i);
    }
  }
}

Result<void> OwnedMemory::begin(const store::TreeImage& tree, store::ImageWriter& writer,
                                const std::filesystem::path& parent, unsigned workers, uint64_t max_cow) {
  if (empty()) return {};
  std::vector<capture::DeviceSource> sources;
  for (const auto& target : targets_) {
    const store::DeviceMemory* memory = find_memory(tree, target->pid());
    if (memory == nullptr) return fail(Code::kNotFound, proc::describe_pid(target->pid()), "has ended");
    sources.push_back({target.get(), memory->space});
  }
  constexpr uint64_t kShare = 4;  // the processes can do without a quarter for a while
  how_.cow_budget = (max_cow != 0 ? max_cow : free_memory() / kShare) / targets_.size();
  how_.stop_timeout_us = options_.lock_timeout_us;
  how_.staging.workers = workers;
  how_.staging.cancel = &cancel_;
  sink_ = std::make_unique<capture::ImageSink>(writer);
  capture_ = std::make_unique<capture::DeviceCapture>(std::move(sources), devices(), *sink_, how_);
  if (parent.empty()) return {};
  CKPT_TRY_ASSIGN(parent_, store::ImageReader::open_description(parent));
  for (const store::DeviceMemory& memory : parent_->manifest().tree.devices)
    CKPT_TRY(capture::expect_parent(capture_->map(), *parent_, memory));
  return {};
}

Result<void> OwnedMemory::pre_copy(unsigned iterations) {
  for (unsigned i = 0; i < iterations && !empty(); ++i) {
    CKPT_TRY(cancel_.check());
    CKPT_TRY_ASSIGN(const capture::DevicePass pass, capture_->iterate());
    pre_copied_.copied += pass.copied, pre_copied_.zero += pass.zero, pre_copied_.chunks = pass.chunks;
  }
  constexpr uint64_t kMostLaunches = 100'000;
  return empty() || options_.delta == capture::DeltaMode::kCopy ? Result<void>()
                                                                : capture_->begin_recording(kMostLaunches);
}

/// On the device that has least.
uint64_t OwnedMemory::free_memory() {
  uint64_t least = UINT64_MAX;
  for (const auto& device : devices_) {
    auto info = device->memory_info();
    least = std::min(least, info ? info->free_bytes : 0);
  }
  return least;
}

Result<void> OwnedMemory::stop(ResumeGuard& guard, Copy copy) {
  if (empty()) return {};
  CKPT_TRY_ASSIGN(capture::DeviceStop stop, capture::DeviceStop::begin(targets(), options_.lock_timeout_us));
  if (options_.delta == capture::DeltaMode::kCopy) {
    CKPT_TRY(capture_->scan());
    deferred_ = true;
    if (copy == Copy::kNow || capture_->missing_bytes() > how_.cow_budget) CKPT_TRY(copy_now());
  } else if (auto replayed = replay_delta(); !replayed) {
    if (replayed.error().code != Code::kTargetAltered) return replayed;
    for (const auto& target : targets_) ::kill(target->pid(), SIGSTOP);
    stop.keep();
    return Error(std::move(replayed).error())
        .with_target("stopped: its device memory is wrong, and it can only be ended");
  }
  CKPT_TRY_ASSIGN(capture::DeviceOffload offload, capture::DeviceOffload::offload(targets(), devices()));
  offload_.emplace(std::move(offload));
  CKPT_TRY(offload_->for_each([&](int pid, uint64_t id, int fd) { return guard.hold(pid, id, fd); }));
  stop.keep();
  for (const auto& target : targets_) CKPT_TRY(target->hold(kLeaseUs));
  leases_.emplace(targets());
  return {};
}

Result<void> OwnedMemory::replay_delta() {
  CKPT_TRY_ASSIGN(replay_, capture::delta_with_replay(*capture_, options_.delta, how_));
  last_ = replay_->pass;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const capture::ReplayDelta::Source& source = replay_->sources[i];
    const std::string what =
        source.why_not.empty() ? fmt::format("{} of {} launches make {} of device memory again", source.launches.size(),
                                             source.recorded, human_bytes(source.chunks.size() * capture::kDeviceChunk))
                               : "device memory is copied, not computed again: " + source.why_not;
    progress_.note(proc::describe_pid(targets_[i]->pid()) + ": " + what);
  }
  return {};
}

Result<void> OwnedMemory::copy_now() {
  if (!std::exchange(deferred_, false)) return {};
  CKPT_TRY_ASSIGN(last_, capture_->copy_missing());
  return {};
}

Result<bool> OwnedMemory::copy_deferred() {
  if (!std::exchange(deferred_, false)) return true;
  CKPT_TRY_ASSIGN(const capture::DeviceCapture::Snapshot shot, capture_->end_cow());
  copied_deferred_ = shot.pass;
  return shot.lost == 0;
}

Result<void> OwnedMemory::finish(store::TreeImage& tree, store::ImageWriter& writer) {
  if (empty()) return {};
  CKPT_TRY(capture_->say_kept());
  for (size_t source = 0; source < capture_->map().sources().size(); ++source) {
    const int pid = capture_->map().sources()[source].target->pid();
    for (store::DeviceMemory& memory : tree.devices) {
      if (tree.processes[static_cast<size_t>(memory.process)].pid != pid) continue;
      CKPT_TRY_ASSIGN(memory, capture::describe_device_memory(capture_->map(), source, memory.process, writer));
      if (replay_) CKPT_TRY(capture::describe_replay(replay_->sources[source], memory));
    }
  }
  return {};
}

Result<void> OwnedMemory::give_back() {
  leases_.reset();
  if (!offload_) return {};
  std::vector<device::Target*> again;
  Result<void> first;
  auto note = [&](Result<void> done) {
    if (first && !done) first = std::move(done);
  };
  for (const auto& target : targets_) {
    auto woken = call_until_heard(target->pid(), [&] { return target->wake(); });
    if (!woken) {
      if (!proc::has_ended(target->pid())) note(std::move(woken));
      continue;
    }
    note(target->lock_api(options_.lock_timeout_us));
    again.push_back(target.get());
  }
  note(offload_->give_back());
  // Where this fails, bytes may be lost: `copy_deferred` sees that by their hashes.
  if (deferred_ && first) (void)capture_->begin_cow();
  for (device::Target* target : again) note(target->unlock_api());
  if (!first) return std::move(first).error().with_code(Code::kTargetAltered);
  offload_.reset();
  return {};
}

void OwnedMemory::forget() { leases_.reset(), offload_.reset(); }

uint64_t owned_bytes(int pid, const GpuOptions& options) {
  if (!options.connect) return 0;
  auto target = options.connect(pid, 0);
  auto allocations = target ? (*target)->allocations() : Result<std::vector<device::Allocation>>(target.error());
  uint64_t out = 0;
  for (const device::Allocation& allocation : allocations.value_or({}))
    out += allocation.kind == device::MemoryKind::kOwned ? allocation.size : 0;
  return out;
}

Result<void> attach_offloaded(std::vector<OffloadedMemory> offloaded, const GpuOptions& options) {
  std::set<int> pids;
  for (const OffloadedMemory& memory : offloaded) pids.insert(memory.pid);
  Result<void> first;
  auto attach_all = [&](int pid) -> Result<void> {
    CKPT_TRY_ASSIGN(std::unique_ptr<device::Target> target, connect_again(pid, options));
    CKPT_TRY(target->lock_api(options.lock_timeout_us));
    CKPT_TRY_ASSIGN(const std::vector<device::Allocation> allocations, target->allocations());
    for (const OffloadedMemory& memory : offloaded) {
      auto same = std::find_if(allocations.begin(), allocations.end(),
                               [&](const auto& a) { return a.id == memory.id && a.released; });
      if (memory.pid == pid && same != allocations.end()) CKPT_TRY(target->attach(memory.id, memory.fd.get()));
    }
    return target->unlock_api();
  };
  for (int pid : pids) {
    auto attached = attach_all(pid);
    if (first && !attached && !proc::has_ended(pid)) first = std::move(attached);
  }
  return first;
}

store::GpuState with_owned_memory(const store::TreeImage& tree) {
  store::GpuState out = tree.gpu;
  for (const store::DeviceMemory& memory : tree.devices) {
    for (const store::DeviceAllocation& allocation : memory.allocations) {
      auto use = std::find_if(out.used.begin(), out.used.end(),
                              [&](const store::GpuUse& u) { return u.uuid == allocation.uuid; });
      if (use == out.used.end()) out.used.push_back({allocation.uuid, "", allocation.size});
      else use->bytes += allocation.size;
    }
  }
  return out;
}

Result<uint64_t> restore_owned(const store::ImageReader& image, const GpuOptions& options, bool lazy,
                               const Cancel& cancel) {
  uint64_t bytes = 0;
  capture::ImageContent content(image);
  std::vector<std::unique_ptr<device::Device>> opened;
  const store::TreeImage& tree = image.manifest().tree;
  for (store::DeviceMemory memory : tree.devices) {
    for (store::DeviceAllocation& allocation : memory.allocations) {
      auto pair = std::find_if(options.map.begin(), options.map.end(),
                               [&](const auto& p) { return p.first == allocation.uuid; });
      if (pair != options.map.end()) allocation.uuid = pair->second;
    }
    const int pid = tree.processes[static_cast<size_t>(memory.process)].pid;
    CKPT_TRY_ASSIGN(std::unique_ptr<device::Target> target, connect_again(pid, options));
    CKPT_TRY(target->lock_api(options.lock_timeout_us));
    std::vector<std::vector<device::ChunkHash>> hashes;
    std::vector<device::Device*> devices;
    for (const store::DeviceAllocation& allocation : memory.allocations) {
      CKPT_TRY_ASSIGN(hashes.emplace_back(), capture::read_device_hashes(image, allocation));
      CKPT_TRY_ASSIGN(device::Device * device, open_once(opened, allocation.uuid, options));
      if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
      bytes += allocation.size;
    }
    capture::StagingOptions staging;
    staging.cancel = &cancel;
    capture::DeviceFill fill(*target, memory, std::move(hashes), devices, content, staging);
    CKPT_TRY(fill.attach());
    if (lazy) {
      CKPT_TRY(fill.lazy());
    } else {
      CKPT_TRY(fill.eager());
      CKPT_TRY(target->unlock_api());
    }
  }
  return bytes;
}

}  // namespace ckpt::engine
