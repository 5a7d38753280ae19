#include "lib/state/epoll/restore.h"

#include <sys/epoll.h>
#include <sys/syscall.h>

#include "lib/state/descriptors/kind_functions.h"
#include "lib/state/descriptors/subject.h"

namespace ckpt::restore {

namespace {

void watch(int set, const store::EpollEntry& entry, RestorerArea& area, SyscallBatch& batch) {
  epoll_event event{};
  event.events = entry.events;
  event.data.u64 = entry.data;
  batch.add("fill an epoll set", SYS_epoll_ctl, set, EPOLL_CTL_ADD, entry.target_fd, area.put(event));
}

}  // namespace

Result<UniqueFd> make_epoll(const store::Descriptor& descriptor) {
  return owned(::epoll_create1(EPOLL_CLOEXEC), descriptor, "cannot make an epoll set");
}

void fill_epoll(const store::Descriptor& descriptor, int fd, int process, RestorerArea& area, SyscallBatch& batch) {
  for (const auto& entry : descriptor.epoll.entries) {
    if (entry.process == process && entry.descriptor < 0) watch(fd, entry, area, batch);
  }
}

void watch_replaced(const store::TreeImage& tree, const std::map<int, int>& sources, int process, RestorerArea& area,
                    SyscallBatch& batch) {
  for (size_t i = 0; i < tree.descriptors.size(); ++i) {
    for (const auto& entry : tree.descriptors[i].epoll.entries) {
      auto watched = sources.find(entry.descriptor);
      if (entry.process != process || watched == sources.end()) continue;
      batch.add("place a watched descriptor", SYS_dup3, watched->second, entry.target_fd, 0);
      watch(sources.at(static_cast<int>(i)), entry, area, batch);
      batch.add("close a watched descriptor", SYS_close, entry.target_fd);
    }
  }
}

}  // namespace ckpt::restore
