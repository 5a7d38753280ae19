#include "lib/state/epoll/capture.h"

#include <fmt/format.h>
#include <linux/kcmp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "lib/state/descriptors/kind_functions.h"

namespace ckpt::capture {

using store::Descriptor;

namespace {

/// Whether `fd` in the table of `of` is what the epoll set `set` watches under `target`.
bool watches(const Inventory& found, const store::FdSlot& set, const store::FdSlot& of, int target, uint32_t order,
             int fd) {
  auto pid = [&](const store::FdSlot& slot) { return found.image.processes[static_cast<size_t>(slot.process)].pid; };
  kcmp_epoll_slot slot{};
  slot.efd = static_cast<uint32_t>(set.fd), slot.tfd = static_cast<uint32_t>(target), slot.toff = order;
  return ::syscall(SYS_kcmp, pid(of), pid(set), KCMP_EPOLL_TFD, fd, &slot) == 0;
}

int find_watched(const Inventory& found, const store::FdSlot& set, int target, uint32_t order) {
  for (size_t i = 0; i < found.image.descriptors.size(); ++i) {
    const Descriptor& d = found.image.descriptors[i];
    if (!d.fds.empty() && watches(found, set, d.fds[0], target, order, d.fds[0].fd)) return static_cast<int>(i);
  }
  return -1;
}

/// Whatever it watches, it may ask network devices by itself. Kernels before 6.9 know nothing of it.
Result<void> take_busy_poll(const Place& place, store::Epoll& epoll) {
  CKPT_TRY_ASSIGN(const UniqueFd theirs, DescriptorContext::duplicate(place));
  store::EpollParameters found;
  if (::ioctl(theirs.get(), store::kGetEpollParameters, &found) != 0) return {};
  epoll.busy_poll = {found.microseconds, found.budget, found.preferred};
  return {};
}

}  // namespace

Result<void> take_epoll(const Place& place, Descriptor& d) {
  CKPT_TRY(take_busy_poll(place, d.epoll));
  for (const auto& target : place.info.epoll) {
    d.epoll.entries.push_back({static_cast<int>(place.process), target.fd, -1, target.events, target.data});
  }
  return {};
}

void find_epoll_targets(Inventory& found) {
  for (Descriptor& d : found.image.descriptors) {
    std::map<int, uint32_t> seen;  // several of one number are told apart by their order
    for (auto& entry : d.epoll.entries) {
      const uint32_t order = seen[entry.target_fd]++;
      auto watched = [&](const store::FdSlot& slot) {
        return watches(found, slot, slot, entry.target_fd, order, entry.target_fd);
      };
      auto slot = std::find_if(d.fds.begin(), d.fds.end(), watched);
      if (slot != d.fds.end()) {
        entry.process = slot->process;
      } else if (!d.fds.empty()) {
        entry.process = d.fds[0].process;
        entry.descriptor = find_watched(found, d.fds[0], entry.target_fd, order);
      }
      if (slot == d.fds.end() && entry.descriptor < 0) {
        const size_t process = d.fds.empty() ? 0 : static_cast<size_t>(d.fds[0].process);
        const std::string subject =
            d.fds.empty() ? "an epoll set in flight" : fmt::format("descriptor {}", d.fds[0].fd);
        found.block(process, subject,
                    fmt::format("an epoll set that watches a descriptor which is gone ({})", entry.target_fd));
      }
    }
  }
}

}  // namespace ckpt::capture
