#include "lib/engine/tracees.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lib/base/clock.h"
#include "lib/engine/gpu_files.h"
#include "lib/memory/leftovers.h"
#include "lib/state/aio/capture.h"
#include "lib/state/io_uring/capture.h"
#include "lib/state/io_uring/drain.h"

namespace ckpt::engine {

Tracee& Tracees::of(const capture::Member& member) {
  auto known = all_.find(member.entry.pid);
  if (known != all_.end() && known->second.key.start_time != member.start_time) all_.erase(known);
  Tracee& out = all_[member.entry.pid];
  out.pid = member.entry.pid, out.key = {member.entry.pid, member.start_time};
  return out;
}

/// What is about to pass by itself is waited for.
Result<void> Tracees::collect_running(const capture::Inventory* just_before) {
  constexpr unsigned kPauseUs = 10'000;
  const int root = context_.options.pid;
  const uint64_t deadline = monotonic_us() + context_.options.freeze_timeout_us;
  for (;;) {
    collected_at_us_ = monotonic_us();
    CKPT_TRY_ASSIGN(running_, capture::look_at_running(root, members_, context_.running_options(just_before)));
    if (running_.blockers.empty()) return {};
    if (!capture::all_pass(running_.blockers) || monotonic_us() > deadline)
      return capture::blocked_error(root, running_.blockers);
    CKPT_TRY(context_.cancel.check());
    ::usleep(kPauseUs);
  }
}

Result<void> Tracees::collect(const capture::Inventory* just_before) {
  CKPT_TRY(collect_running(just_before));
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].entry.zombie || running_.vmas[i].empty()) continue;
    Tracee& tracee = of(members_[i]);
    auto gadgets = proc::find_gadgets(tracee.pid, running_.vmas[i]);
    if (!gadgets && i == 0) return std::move(gadgets).error();
    if (!gadgets) continue;  // it has just begun, or is about to end: asked again once it is frozen
    tracee.gadgets = *gadgets;
    tracee.has_pinned_pages = running_.statuses[i][0].has_pinned_pages;
  }
  return find_devices();
}

/// What a GPU writes into host memory goes past every page table: no tracking of such a process is to be trusted.
Result<void> Tracees::find_devices() {
  std::vector<int> pids;
  for (const auto& [pid, tracee] : all_) pids.push_back(pid);
  CKPT_TRY(devices_.find(pids, [this](int pid) {
    const int seen = running_.find(pid);
    return seen < 0 ? may_use_gpu(pid) : running_.gpus[static_cast<size_t>(seen)];
  }));
  std::vector<capture::Blocker> blockers = blockers_of(devices_);
  CKPT_TRY_ASSIGN(
      std::vector<capture::Blocker> stay,
      find_gpu_files_that_stay(context_.options.pid, context_.running_options(nullptr), running_, devices_));
  blockers.insert(blockers.end(), stay.begin(), stay.end());
  if (!blockers.empty()) return capture::blocked_error(context_.options.pid, blockers);
  for (const DeviceHold::Hazard& note : devices_.new_notes())
    context_.progress.note(proc::describe_pid(note.pid) + " " + note.what);
  for (int pid : devices_.pids()) of(pid).has_pinned_pages = true;
  return {};
}

Result<capture::Inventory> Tracees::collect_again() {
  constexpr uint64_t kJustNowUs = 200'000;
  const bool just_now = monotonic_us() - collected_at_us_ < kJustNowUs;
  capture::Inventory then = std::move(running_);
  for (store::ProcessImage& process : then.image.processes) process.maps = {};  // collecting asks `then.vmas`
  CKPT_TRY(collect(just_now ? &then : nullptr));
  CKPT_TRY(lock());
  return then;
}

Result<void> Tracees::lock() {
  for (auto at = all_.begin(); at != all_.end();) {
    Tracee& tracee = at->second;
    if (!tracee.lock) {
      auto lock = capture::CaptureLock::take(tracee.key);
      if (!lock && lock.error().code == Code::kNotFound && at->first != context_.options.pid) {  // it has ended since
        at = all_.erase(at);
        continue;
      }
      if (!lock) return std::move(lock).error();
      tracee.lock.emplace(std::move(*lock));
    }
    ++at;
  }
  return {};
}

Result<void> Tracees::clear_leftovers() {
  bool cleared = false;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].entry.zombie || running_.vmas[i].empty()) continue;
    const capture::Leftovers left = capture::find_leftovers(members_[i].entry.pid, running_.vmas[i]);
    if (left.empty()) continue;
    CKPT_TRY(capture::clear_leftovers(members_[i].entry.pid, left));
    cleared = true;
  }
  if (!cleared) return {};
  CKPT_TRY(collect());
  return lock();
}

void Tracees::spawn_daemons() {
  if (std::exchange(spawned_daemons_, true)) return;
  for (auto& [pid, tracee] : all_) {
    auto daemon = capture::TrackingDaemon::spawn();
    if (!daemon) return context_.progress.note(daemon.error().text() + ": writes are not tracked");
    tracee.daemon.emplace(std::move(*daemon));
  }
}

void Tracees::take_over_tracking(const std::string& parent, bool all) {
  for (auto& [pid, tracee] : all_) {
    if (tracee.userfault || (!tracee.tracked() && !all)) continue;
    auto taken = capture::take_over_tracking(tracee.key);
    const bool ours = tracee.tracked() && taken && taken->image.id == parent;
    if (ours) tracee.userfault = std::move(taken->userfault);
    tracee.tracking = ours ? Tracking::kSinceParent : Tracking::kNone;
  }
}

bool Tracees::any_tracked() const {
  return std::any_of(all_.begin(), all_.end(), [](const auto& entry) { return entry.second.tracked(); });
}

Result<void> Tracees::set_members(const std::vector<proc::TreeEntry>& entries) {
  const uint64_t root_started = members_[0].start_time;
  CKPT_TRY_ASSIGN(members_, capture::open_members(entries, std::move(members_)));
  if (members_[0].start_time == root_started) return {};
  return fail(Code::kNotFound, "process " + std::to_string(context_.options.pid), "has ended");
}

Result<bool> Tracees::drain_rings(const proc::FrozenProcess& process, const capture::Inventory& known,
                                  int index) const {
  const int owner = known.image.processes[static_cast<size_t>(index)].descriptors_of;
  const std::vector<capture::RingPlace> rings = capture::rings_of(known.image, owner < 0 ? index : owner);
  if (rings.empty()) return true;
  const auto tracee = all_.find(process.pid());
  const bool known_code = tracee != all_.end() && tracee->second.gadgets &&
                          proc::still_hold(process.pid(), *tracee->second.gadgets);
  return capture::drain_rings(process, known_code ? &*tracee->second.gadgets : nullptr, rings);
}

/// What cannot be told is in flight.
bool Tracees::drain_aio(int pid, const capture::Inventory& known, int index) const {
  const auto& contexts = known.image.aio_contexts;
  if (std::none_of(contexts.begin(), contexts.end(), [&](const auto& c) { return c.process == index; })) return true;
  const auto member =
      std::find_if(members_.begin(), members_.end(), [&](const capture::Member& m) { return m.entry.pid == pid; });
  return member != members_.end() && capture::drain_aio(pid, member->pidfd.get()).value_or(false);
}

Result<std::vector<int>> Tracees::drain_requests(const proc::FrozenTree& tree, const capture::Inventory& known) const {
  std::vector<int> out;
  for (const proc::TreeEntry& entry : tree.entries()) {
    const int index = known.find(entry.pid);
    if (entry.zombie || index < 0) continue;
    CKPT_TRY_ASSIGN(bool drained, drain_rings(tree.process(entry.pid), known, index));
    if (!drain_aio(entry.pid, known, index)) drained = false;
    if (!drained) out.push_back(entry.pid);
  }
  return out;
}

}  // namespace ckpt::engine
