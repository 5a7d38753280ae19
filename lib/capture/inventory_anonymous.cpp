// Descriptors of what has no name: events, timers, signals, watches, handles of processes, epoll sets.
#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "lib/base/threads.h"
#include "lib/capture/inventory_descriptors.h"
#include "lib/proc/userfault.h"

namespace ckpt::capture {

using store::Descriptor;
using store::DescriptorKind;

Result<bool> DescriptorInventory::take_anonymous(const Place& place, Descriptor& d) {
  const proc::FdInfo& info = place.info;
  std::string_view kind = std::string_view(place.link).substr(std::string_view("anon_inode:").size());
  if (kind == "[eventfd]") {
    d.kind = DescriptorKind::kEventfd;
    d.eventfd_count = info.eventfd_count, d.eventfd_semaphore = info.eventfd_semaphore;
  } else if (kind == "[eventpoll]") {
    d.kind = DescriptorKind::kEpoll;
    for (const auto& target : info.epoll) d.epoll.push_back({static_cast<int>(place.process), target.fd, -1, target.events, target.data});
  } else if (kind == "[timerfd]") {
    return take_timer(place, d);
  } else if (kind == "[signalfd]") {
    d.kind = DescriptorKind::kSignalfd;
    d.signalfd_mask = info.signal_mask;
  } else if (kind == "inotify" || kind == "[fanotify]") {
    return take_watches(place, kind == "inotify", d);
  } else if (kind == "[pidfd]") {
    return take_pidfd(place, d);
  } else {
    return block(place, fmt::format("{}, which is not supported", kind)), false;
  }
  return true;
}

Result<bool> DescriptorInventory::take_watches(const Place& place, bool inotify, Descriptor& d) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
  CKPT_TRY_ASSIGN(std::string text, proc::read_small(place.pid, fmt::format("fdinfo/{}", place.fd)));
  if (!finder_) {
    CKPT_TRY_ASSIGN(FileFinder finder, FileFinder::create(known_folders()));
    finder_.emplace(std::move(finder));
  }
  Result<void> described;
  // The finder goes from folder to folder: not in a thread whose current one others use.
  std::thread apart;
  const bool started = start_thread(apart, [&] {
    if (::unshare(CLONE_FS) != 0) {
      described = sys_error(place.link, "cannot be looked into");
    } else if (inotify) {
      auto found = describe_inotify(theirs.get(), text, *finder_);
      if (found) d.object = static_cast<int>(out_.image.inotifies.size()), out_.image.inotifies.push_back(std::move(*found));
      else described = found.error();
    } else {
      auto found = describe_fanotify(theirs.get(), text, *finder_);
      if (found) d.object = static_cast<int>(out_.image.fanotifies.size()), out_.image.fanotifies.push_back(std::move(*found));
      else described = found.error();
    }
  });
  if (!started) return no_thread(place.link);
  apart.join();
  if (!described) return block(place, described.error().text()), false;
  d.kind = inotify ? DescriptorKind::kInotify : DescriptorKind::kFanotify;
  return true;
}

/// Where a watched file may lie whose name the kernel has forgotten.
std::vector<std::string> DescriptorInventory::known_folders() const {
  std::set<std::string> folders;
  for (const store::FileIdentity& file : out_.image.files) {
    if (!file.path.empty() && file.path[0] == '/') folders.insert(S_ISDIR(file.mode) ? file.path : std::filesystem::path(file.path).parent_path().string());
  }
  return {folders.begin(), folders.end()};
}

Result<bool> DescriptorInventory::take_pidfd(const Place& place, Descriptor& d) {
  CKPT_TRY_ASSIGN(std::string text, proc::read_small(place.pid, fmt::format("fdinfo/{}", place.fd)));
  auto handle = parse_pidfd(text);
  if (!handle) return block(place, handle.error().text()), false;
  if (handle->pid >= 0 && !is_of_tree(handle->pid)) {
    return block(place, "a pidfd of a process outside (" + proc::describe_pid(handle->pid) + ")"), false;
  }
  if (handle->pid >= 0 && out_.find(handle->pid) < 0)
    return block(place, fmt::format("a pidfd of thread {}, which is not the first of its process: not supported", handle->pid)), false;
  d.kind = DescriptorKind::kPidfd;
  d.object = static_cast<int>(out_.image.process_handles.size());
  out_.image.process_handles.push_back(*handle);
  return true;
}

/// A process or a thread of it.
bool DescriptorInventory::is_of_tree(int number) const {
  for (const store::ProcessImage& process : out_.image.processes) {
    for (const store::Thread& thread : process.threads) {
      if (thread.tid == number) return true;
    }
  }
  return false;
}

/// A periodic timer that has expired stands still until somebody reads it or asks for its time: only asking, which
/// changes nothing that the process can see, makes fdinfo tell how often and when next.
Result<bool> DescriptorInventory::take_timer(const Place& place, Descriptor& d) {
  CKPT_TRY_ASSIGN(UniqueFd theirs, proc::get_remote_fd(place.pidfd, place.fd));
  itimerspec now{};
  if (::timerfd_gettime(theirs.get(), &now) != 0) return sys_error("timerfd", "cannot read its time left");
  CKPT_TRY_ASSIGN(proc::FdInfo info, proc::read_fdinfo(place.pid, place.fd));
  d.kind = DescriptorKind::kTimerfd;
  d.timerfd_clock = info.timer_clock, d.timerfd_settime_flags = info.timer_flags, d.timerfd_ticks = info.timer_ticks;
  d.timerfd_interval_ns = info.timer_interval_ns, d.timerfd_value_ns = info.timer_value_ns;
  // It may have expired again between the two looks; a disarmed one has no ticks.
  if (d.timerfd_value_ns == 0 && d.timerfd_ticks != 0) d.timerfd_value_ns = d.timerfd_interval_ns;
  if (d.timerfd_value_ns != 0 && d.timerfd_interval_ns == 0 && (d.timerfd_settime_flags & TFD_TIMER_ABSTIME) != 0) {
    timespec clock{};
    ::clock_gettime(d.timerfd_clock, &clock);
    d.timerfd_value_ns += static_cast<uint64_t>(clock.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(clock.tv_nsec);
  }
  return true;
}

/// An epoll set names descriptors by the number they had when they were added. One that was closed or replaced since is
/// watched as long as its description is open somewhere.
void DescriptorInventory::check_epoll_targets() {
  for (Descriptor& d : out_.image.descriptors) {
    std::map<int, uint32_t> seen;  // several of one number are told apart by their order
    for (auto& entry : d.epoll) {
      const uint32_t order = seen[entry.target_fd]++;
      auto watched = [&](const store::FdSlot& slot) { return watches(slot, slot, entry.target_fd, order, entry.target_fd); };
      auto slot = std::find_if(d.fds.begin(), d.fds.end(), watched);
      if (slot != d.fds.end()) {
        entry.process = slot->process;
      } else if (!d.fds.empty()) {
        entry.process = d.fds[0].process;
        entry.descriptor = find_watched(d.fds[0], entry.target_fd, order);
      }
      if (slot == d.fds.end() && entry.descriptor < 0) {
        const size_t process = d.fds.empty() ? 0 : static_cast<size_t>(d.fds[0].process);
        const std::string subject = d.fds.empty() ? "an epoll set on its way" : fmt::format("descriptor {}", d.fds[0].fd);
        out_.block(process, subject, fmt::format("an epoll set that watches a descriptor which is gone ({})", entry.target_fd));
      }
    }
  }
}

/// Whether `fd` in the table of `of` is what the epoll set `set` watches under `target`.
bool DescriptorInventory::watches(const store::FdSlot& set, const store::FdSlot& of, int target, uint32_t order, int fd) const {
  auto pid = [&](const store::FdSlot& slot) { return out_.image.processes[static_cast<size_t>(slot.process)].pid; };
  kcmp_epoll_slot slot{};
  slot.efd = static_cast<uint32_t>(set.fd), slot.tfd = static_cast<uint32_t>(target), slot.toff = order;
  return ::syscall(SYS_kcmp, pid(of), pid(set), KCMP_EPOLL_TFD, fd, &slot) == 0;
}

int DescriptorInventory::find_watched(const store::FdSlot& set, int target, uint32_t order) const {
  for (size_t i = 0; i < out_.image.descriptors.size(); ++i) {
    const Descriptor& d = out_.image.descriptors[i];
    if (!d.fds.empty() && watches(set, d.fds[0], target, order, d.fds[0].fd)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace ckpt::capture
