#include "lib/engine/owned_memory.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "lib/base/clock.h"
#include "lib/capture/device_manifest.h"
#include "lib/proc/procfs.h"

namespace ckpt::engine {

namespace {

constexpr uint64_t kConnectUs = 10'000'000;  ///< for an agent that is about to listen
constexpr uint64_t kLeaseUs = 2'000'000;     ///< from the hold to the freeze; should ckpt be killed, the agents listen again that much later

const store::DeviceMemory* find_memory(const store::TreeImage& tree, int pid) {
  for (const store::DeviceMemory& memory : tree.devices) {
    if (tree.processes[static_cast<size_t>(memory.process)].pid == pid) return &memory;
  }
  return nullptr;
}

/// Opens the devices by UUID, each once.
Result<device::Device*> open_once(std::vector<std::unique_ptr<device::Device>>& devices, const std::string& uuid, const GpuOptions& options) {
  for (const auto& device : devices) {
    if (device->properties().uuid == uuid) return device.get();
  }
  CKPT_TRY_ASSIGN(std::unique_ptr<device::Device> opened, options.open_device(uuid));
  devices.push_back(std::move(opened));
  return devices.back().get();
}

/// An agent that will listen soon: when its lease is over, or it has found itself in a new life.
Result<std::unique_ptr<device::Target>> connect_again(int pid, const GpuOptions& options) {
  const Stopwatch watch;
  for (;;) {
    auto target = options.connect(pid, kConnectUs);
    if (target || target.error().code != Code::kNotFound || watch.elapsed_us() > kConnectUs || proc::has_ended(pid)) return target;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
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

Result<void> OwnedMemory::connect(const std::vector<int>& pids, ProgressSink& progress) {
  if (!targets_.empty() || !options_.connect || !options_.open_device) return {};
  for (int pid : pids) {
    auto target = options_.connect(pid, 0);
    if (!target && target.error().code == Code::kNotFound) continue;
    if (!target) return std::move(target).error();
    CKPT_TRY_ASSIGN(const auto allocations, (*target)->allocations());
    const bool owns = std::any_of(allocations.begin(), allocations.end(), [](const auto& a) { return a.kind == device::MemoryKind::kOwned; });
    if (owns) targets_.push_back(std::move(*target));
  }
  auto opened = open_devices();
  if (opened) return {};
  targets_.clear();
  devices_.clear();
  if (opened.error().code != Code::kUnsupported) return opened;
  progress.note(opened.error().text() + ": device memory is not copied ahead, the driver takes all of it");
  return {};
}

Result<void> OwnedMemory::open_devices() {
  for (const auto& target : targets_) {
    CKPT_TRY_ASSIGN(const auto allocations, target->allocations());
    for (const device::Allocation& allocation : allocations) {
      if (allocation.kind != device::MemoryKind::kOwned) continue;
      bytes_ += allocation.size;
      CKPT_TRY_ASSIGN(const std::string uuid, target->device_uuid(allocation.device));
      CKPT_TRY_ASSIGN(device::Device * device, open_once(devices_, uuid, options_));
      (void)device;
    }
  }
  for (const auto& device : devices_) CKPT_TRY(try_hash(*device));
  return {};
}

void OwnedMemory::add_spaces(store::TreeImage& tree) const {
  tree.devices.clear();
  for (const auto& target : targets_.empty() ? before_ : targets_) {
    for (size_t i = 0; i < tree.processes.size(); ++i) {
      if (tree.processes[i].pid == target->pid()) tree.devices.emplace_back().process = static_cast<int>(i);
    }
  }
}

Result<void> OwnedMemory::begin(const store::TreeImage& tree, store::ImageWriter& writer, const std::filesystem::path& parent, unsigned workers) {
  if (empty()) return {};
  std::vector<capture::DeviceSource> sources;
  for (const auto& target : targets_) {
    const store::DeviceMemory* memory = find_memory(tree, target->pid());
    if (memory == nullptr) return fail(Code::kNotFound, proc::describe_pid(target->pid()), "has ended");
    sources.push_back({target.get(), memory->space});
  }
  capture::DeviceOptions how;
  how.stop_timeout_us = options_.lock_timeout_us;
  how.staging.workers = workers;
  how.staging.cancel = &cancel_;
  sink_ = std::make_unique<capture::ImageSink>(writer);
  capture_ = std::make_unique<capture::DeviceCapture>(std::move(sources), devices(), *sink_, how);
  if (parent.empty()) return {};
  CKPT_TRY_ASSIGN(parent_, store::ImageReader::open_description(parent));
  for (const store::DeviceMemory& memory : parent_->manifest().tree.devices) CKPT_TRY(capture::expect_parent(capture_->map(), *parent_, memory));
  return {};
}

Result<void> OwnedMemory::copy_ahead(unsigned rounds) {
  for (unsigned i = 0; i < rounds && !empty(); ++i) {
    CKPT_TRY(cancel_.check());
    CKPT_TRY_ASSIGN(const capture::DevicePass pass, capture_->round());
    ahead_.copied += pass.copied, ahead_.zero += pass.zero, ahead_.chunks = pass.chunks;
  }
  return {};
}

Result<void> OwnedMemory::stop(ResumeGuard& guard) {
  if (empty()) return {};
  CKPT_TRY_ASSIGN(capture::DeviceStop stop, capture::DeviceStop::begin(targets(), options_.lock_timeout_us));
  CKPT_TRY_ASSIGN(last_, capture_->delta_at_stop());
  CKPT_TRY_ASSIGN(capture::DevicePark park, capture::DevicePark::park(targets(), devices()));
  park_.emplace(std::move(park));
  CKPT_TRY(park_->for_each([&](int pid, uint64_t id, int fd) { return guard.hold(pid, id, fd); }));
  stop.keep();
  for (const auto& target : targets_) CKPT_TRY(target->hold(kLeaseUs));
  before_ = std::exchange(targets_, {});
  return {};
}

Result<void> OwnedMemory::describe(store::TreeImage& tree, store::ImageWriter& writer) {
  if (!capture_) return {};
  for (size_t source = 0; source < capture_->map().sources().size(); ++source) {
    const int pid = capture_->map().sources()[source].target->pid();
    for (store::DeviceMemory& memory : tree.devices) {
      if (tree.processes[static_cast<size_t>(memory.process)].pid != pid) continue;
      CKPT_TRY_ASSIGN(memory, capture::describe_device_memory(capture_->map(), source, memory.process, writer));
    }
  }
  return {};
}

Result<void> OwnedMemory::give_back() {
  if (!park_) return {};
  const std::vector<std::unique_ptr<device::Target>>& ended = before_.empty() ? targets_ : before_;
  std::vector<std::unique_ptr<device::Target>> again;
  Result<void> first;
  auto note = [&](Result<void> done) {
    if (first && !done) first = std::move(done);
  };
  for (const auto& before : ended) {
    (void)before->wake();
    auto target = connect_again(before->pid(), options_);
    if (!target) {
      if (!proc::has_ended(before->pid())) note(std::move(target).error());
      continue;
    }
    note((*target)->close_gate(options_.lock_timeout_us));
    park_->hand_over(*before, **target);
    again.push_back(std::move(*target));
  }
  note(park_->give_back());
  for (const auto& target : again) note(target->open_gate());
  if (!first) return std::move(first).error().with_code(Code::kTargetAltered);
  park_.reset();
  return {};
}

Result<void> OwnedMemory::finish() { return capture_ ? capture_->say_kept() : Result<void>(); }

void OwnedMemory::forget() { park_.reset(); }

Result<void> attach_parked(std::vector<ParkedMemory> parked, const GpuOptions& options) {
  std::set<int> pids;
  for (const ParkedMemory& memory : parked) pids.insert(memory.pid);
  Result<void> first;
  auto attach_all = [&](int pid) -> Result<void> {
    CKPT_TRY_ASSIGN(std::unique_ptr<device::Target> target, connect_again(pid, options));
    CKPT_TRY(target->close_gate(options.lock_timeout_us));
    CKPT_TRY_ASSIGN(const std::vector<device::Allocation> allocations, target->allocations());
    for (const ParkedMemory& memory : parked) {
      auto same = std::find_if(allocations.begin(), allocations.end(), [&](const auto& a) { return a.id == memory.id && a.released; });
      if (memory.pid == pid && same != allocations.end()) CKPT_TRY(target->attach(memory.id, memory.fd.get()));
    }
    return target->open_gate();
  };
  for (int pid : pids) {
    auto attached = attach_all(pid);
    if (first && !attached && !proc::has_ended(pid)) first = std::move(attached);
  }
  return first;
}

Result<void> renew_memory(const std::vector<int>& pids, const GpuOptions& options) {
  for (int pid : options.connect ? pids : std::vector<int>()) {
    auto target = options.connect(pid, 0);
    if (!target && target.error().code == Code::kNotFound) continue;
    if (!target) return std::move(target).error();
    CKPT_TRY_ASSIGN(capture::DeviceStop stop, capture::DeviceStop::begin({target->get()}, options.lock_timeout_us));
    CKPT_TRY_ASSIGN(const std::vector<device::Allocation> allocations, (*target)->allocations());
    for (const device::Allocation& allocation : allocations) {
      if (allocation.kind == device::MemoryKind::kOwned && !allocation.released) CKPT_TRY((*target)->renew(allocation.id));
    }
    CKPT_TRY(stop.end());
  }
  return {};
}

store::GpuState with_owned_memory(const store::TreeImage& tree) {
  store::GpuState out = tree.gpu;
  for (const store::DeviceMemory& memory : tree.devices) {
    for (const store::DeviceAllocation& allocation : memory.allocations) {
      auto use = std::find_if(out.used.begin(), out.used.end(), [&](const store::GpuUse& u) { return u.uuid == allocation.uuid; });
      if (use == out.used.end()) out.used.push_back({allocation.uuid, "", allocation.size});
      else use->bytes += allocation.size;
    }
  }
  return out;
}

Result<uint64_t> restore_owned(const store::ImageReader& image, const GpuOptions& options, bool lazy, const Cancel& cancel) {
  uint64_t bytes = 0;
  capture::ImageContent content(image);
  std::vector<std::unique_ptr<device::Device>> opened;
  const store::TreeImage& tree = image.manifest().tree;
  for (store::DeviceMemory memory : tree.devices) {
    for (store::DeviceAllocation& allocation : memory.allocations) {
      auto pair = std::find_if(options.map.begin(), options.map.end(), [&](const auto& p) { return p.first == allocation.uuid; });
      if (pair != options.map.end()) allocation.uuid = pair->second;
    }
    const int pid = tree.processes[static_cast<size_t>(memory.process)].pid;
    CKPT_TRY_ASSIGN(std::unique_ptr<device::Target> target, connect_again(pid, options));
    CKPT_TRY(target->close_gate(options.lock_timeout_us));
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
      CKPT_TRY(target->open_gate());
    }
  }
  return bytes;
}

}  // namespace ckpt::engine
