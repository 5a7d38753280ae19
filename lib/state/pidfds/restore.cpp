#include "lib/state/pidfds/restore.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <optional>
#include <utility>

#include "lib/state/descriptors/subject.h"
#include "lib/state/namespaces/pids.h"

namespace ckpt::restore {

Result<UniqueFd> make_dead_pidfd(int flags) {
  pid_t child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) ::_exit(0);
  if (child < 0) return sys_error("pidfd", "cannot make a process for it");
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, child, flags & (O_NONBLOCK | O_EXCL))));
  int error = errno;
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!fd) return sys_error(error, "pidfd", "cannot be made");
  return fd;
}

void open_pidfds(const std::vector<PidfdPlace>& places, SyscallBatch& batch) {
  for (const PidfdPlace& place : places)
    batch.add("open a pidfd", SYS_pidfd_open, place.pid, place.flags & (O_NONBLOCK | O_EXCL));
}

void place_pidfds(const std::vector<PidfdPlace>& places, const SyscallBatch& opened, size_t first, int spare,
                  SyscallBatch& batch) {
  for (size_t i = 0; i < places.size(); ++i) {
    int64_t number = opened.calls()[first + i].result;
    batch.add("put a pidfd aside", SYS_dup3, number, spare + static_cast<int>(i), O_CLOEXEC);
    batch.add("close a pidfd", SYS_close, number);
  }
  for (size_t i = 0; i < places.size(); ++i) {
    for (const auto& [fd, close_on_exec] : places[i].fds)
      batch.add("place a pidfd", SYS_dup3, spare + static_cast<int>(i), fd, close_on_exec ? O_CLOEXEC : 0);
    batch.add("close a pidfd", SYS_close, spare + static_cast<int>(i));
  }
}

Result<void> open_pidfds(const store::TreeImage& tree, int process, int spare, Child& child) {
  std::vector<PidfdPlace> places;
  std::optional<Child> dying;
  SyscallBatch open, put;
  for (const store::Descriptor& descriptor : tree.descriptors) {
    if (descriptor.kind != store::DescriptorKind::kPidfd || number_in(descriptor, process) < 0) continue;
    PidfdPlace place;
    place.pid = tree.process_handles[static_cast<size_t>(descriptor.object)].pid;
    if (place.pid > 0) place.pid = state::number_seen_by(tree, static_cast<size_t>(process), place.pid);
    // To a process in a further pid namespace one that ckpt has made is of nobody whom it could know.
    if (place.pid < 0 && child.numbers().size() > 1) {
      if (!dying) {
        CKPT_TRY_ASSIGN(Child made, child.fork(0, 0, 0));
        dying.emplace(std::move(made));
      }
      place.pid = dying->numbers()[child.numbers().size() - 1];
      // That one gives its numbers back: there are no others to open more.
      for (const auto& slot : descriptor.fds) open.add("make room for a pidfd", SYS_close, slot.fd);
    }
    place.flags = descriptor.flags;
    for (const auto& slot : descriptor.fds) place.fds.emplace_back(slot.fd, slot.close_on_exec);
    if (place.pid >= 0) places.push_back(std::move(place));
  }
  if (places.empty()) return {};
  const size_t first = open.size();
  open_pidfds(places, open);
  CKPT_TRY(child.run(open));
  place_pidfds(places, open, first, spare, put);
  if (dying) {
    CKPT_TRY(dying->end(SIGKILL));
    put.add("reap a process that was made for a pidfd", SYS_wait4, dying->numbers()[child.numbers().size() - 1], 0,
            __WALL, 0);
  }
  return child.run(put);
}

}  // namespace ckpt::restore
