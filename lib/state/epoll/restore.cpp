#include "lib/state/epoll/restore.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>

#include "lib/proc/procfs.h"
#include "lib/state/descriptors/kind_functions.h"
#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

namespace {

/// What EPOLLONESHOT leaves of the events of an entry that has fired; epoll_ctl adds EPOLLERR and EPOLLHUP to all that
/// it is given.
constexpr uint32_t kLeft = EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE;
constexpr uint32_t kAnything = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLERR | EPOLLHUP;

bool has_fired(const store::EpollEntry& entry) {
  return (entry.events & EPOLLONESHOT) != 0 && (entry.events & ~kLeft) == 0;
}

/// Whether all that it watches is added by one process, under numbers that lead there: then it is empty when that
/// process comes to it.
bool is_filled_by(const store::Descriptor& set, int process) {
  return std::all_of(set.epoll.entries.begin(), set.epoll.entries.end(), [process](const store::EpollEntry& entry) {
    return entry.process == process && entry.descriptor < 0;
  });
}

void watch(int operation, int set, const store::EpollEntry& entry, uint32_t more, RestorerArea& area,
           SyscallBatch& batch) {
  epoll_event event{};
  event.events = entry.events | more;
  event.data.u64 = entry.data;
  batch.add("fill an epoll set", SYS_epoll_ctl, set, operation, entry.target_fd, area.put(event));
}

/// An entry is as it was once it has fired again: for anything at all, while the set has no others.
void watch_fired(const store::Descriptor& descriptor, int fd, RestorerArea& area, SyscallBatch& batch) {
  constexpr size_t kAtOnce = 64;
  size_t count = 0;
  for (const auto& entry : descriptor.epoll.entries) {
    if (!has_fired(entry)) continue;
    watch(EPOLL_CTL_ADD, fd, entry, kAnything, area, batch);
    ++count;
  }
  if (count == 0) return;
  const uint64_t room = area.put(std::array<epoll_event, kAtOnce>{});
  for (size_t at = 0; at < count; at += kAtOnce)
    batch.add("let one-shot entries of an epoll set fire", SYS_epoll_wait, fd, room, kAtOnce, 0);
}

std::string numbers_of(const std::vector<int>& fds) {
  constexpr size_t kMost = 8;
  const size_t shown = std::min(fds.size(), kMost);
  const std::vector<int> first(fds.begin(), fds.begin() + static_cast<ptrdiff_t>(shown));
  return fmt::format("{}{}", fmt::join(first, ", "),
                     shown < fds.size() ? fmt::format(" and {} more", fds.size() - shown) : "");
}

/// Those of a set's one-shot entries that had fired, and are armed now.
Result<std::vector<const store::EpollEntry*>> still_armed(const store::Descriptor& set, int fd, int process,
                                                          const Child& child) {
  std::vector<const store::EpollEntry*> out;
  std::map<int, const store::EpollEntry*> fired;
  for (const auto& entry : set.epoll.entries) {
    if (entry.process != process || !has_fired(entry)) continue;
    if (entry.descriptor < 0) fired.emplace(entry.target_fd, &entry);
    else out.push_back(&entry);
  }
  if (fired.empty()) return out;
  CKPT_TRY_ASSIGN(const proc::FdInfo info, proc::read_fdinfo(child.pid(), fd));
  for (const auto& target : info.epoll) {
    auto found = fired.find(target.fd);
    if (found != fired.end() && (target.events & ~kLeft) != 0) out.push_back(found->second);
  }
  return out;
}

}  // namespace

Result<UniqueFd> make_epoll(const store::Descriptor& descriptor) {
  CKPT_TRY_ASSIGN(UniqueFd out, owned(::epoll_create1(EPOLL_CLOEXEC), descriptor, "cannot make an epoll set"));
  const std::array<uint32_t, 3>& poll = descriptor.epoll.busy_poll;
  if (poll == std::array<uint32_t, 3>{}) return out;
  const store::EpollParameters wanted{poll[0], static_cast<uint16_t>(poll[1]), static_cast<uint8_t>(poll[2])};
  if (::ioctl(out.get(), store::kSetEpollParameters, &wanted) != 0)
    return sys_error(subject_of(descriptor), "cannot be made to poll network devices as it did (EPIOCSPARAMS)");
  return out;
}

void fill_epoll(const store::Descriptor& descriptor, int fd, int process, RestorerArea& area, SyscallBatch& batch) {
  const bool empty = is_filled_by(descriptor, process);
  if (empty) watch_fired(descriptor, fd, area, batch);
  for (const auto& entry : descriptor.epoll.entries) {
    if (entry.process != process || entry.descriptor >= 0 || (empty && has_fired(entry))) continue;
    watch(EPOLL_CTL_ADD, fd, entry, 0, area, batch);
  }
}

Result<void> settle_fired(const store::TreeImage& tree, int process, Child& child, ProgressSink& progress) {
  SyscallBatch batch;
  for (const store::Descriptor& set : tree.descriptors) {
    auto slot = std::find_if(set.fds.begin(), set.fds.end(), [&](const auto& fd) { return fd.process == process; });
    if (set.epoll.entries.empty() || slot == set.fds.end()) continue;
    CKPT_TRY_ASSIGN(const auto armed, still_armed(set, slot->fd, process, child));
    if (armed.empty()) continue;
    std::vector<int> fds;
    for (const store::EpollEntry* entry : armed) {
      fds.push_back(entry->target_fd);
      if (entry->descriptor < 0) watch(EPOLL_CTL_MOD, slot->fd, *entry, 0, child.area(), batch);
    }
    progress.note(fmt::format(
        "process {}, descriptor {}: a one-shot watch of an epoll set that had fired (of descriptor {}) tells of errors "
        "and hang-ups again: it could not be made to fire now",
        child.pid(), slot->fd, numbers_of(fds)));
  }
  return child.run(batch);
}

void watch_replaced(const store::TreeImage& tree, const std::map<int, int>& sources, int process, RestorerArea& area,
                    SyscallBatch& batch) {
  for (size_t i = 0; i < tree.descriptors.size(); ++i) {
    for (const auto& entry : tree.descriptors[i].epoll.entries) {
      auto watched = sources.find(entry.descriptor);
      if (entry.process != process || watched == sources.end()) continue;
      batch.add("place a watched descriptor", SYS_dup3, watched->second, entry.target_fd, 0);
      watch(EPOLL_CTL_ADD, sources.at(static_cast<int>(i)), entry, 0, area, batch);
      batch.add("close a watched descriptor", SYS_close, entry.target_fd);
    }
  }
}

}  // namespace ckpt::restore
